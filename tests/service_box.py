"""python service_box.py DATA SETTINGS: a server as `gdnspec serve` starts it, with settings that have no option."""

import json
import sys
from pathlib import Path

from gdnspec.service.folder import opened
from gdnspec.service.server import listening, serve
from gdnspec.service.settings import Settings

if __name__ == "__main__":
    given = {name: tuple(v) if isinstance(v, list) else v for name, v in json.loads(sys.argv[2]).items()}
    port = given.pop("port", 0)
    settings = Settings(Path(sys.argv[1]), **given)
    database = opened(settings)
    address = listening("127.0.0.1", port)
    print(address.getsockname()[1], flush=True)
    serve(database, settings, address)
