"""The command `gdnspec`. Each command imports what it needs when it runs: reading JSON never waits for torch."""
