"""python server_process.py DATA SETTINGS: a server as `gdnspec serve` starts it, with settings that have no option."""

import json
import sys
import time
from pathlib import Path

from gdnspec.server.data_folder import opened
from gdnspec.server.listener import listening, serve
from gdnspec.server.settings import Settings

if __name__ == "__main__":
    given = {name: tuple(v) if isinstance(v, list) else v for name, v in json.loads(sys.argv[2]).items()}
    port = given.pop("port", 0)
    if ahead := given.pop("ahead", ""):  # seconds that this server's clock is wrong by, or a file that says so
        right, file = time.time, Path(str(ahead))
        time.time = lambda: right() + float(file.read_text() if isinstance(ahead, str) else ahead)
    settings = Settings(Path(sys.argv[1]), **given)
    database = opened(settings)
    address = listening("127.0.0.1", port)
    print(address.getsockname()[1], flush=True)
    serve(database, settings, address)
