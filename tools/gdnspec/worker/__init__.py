"""The child: loads one solution, receives inputs, returns outputs. It decides nothing."""
