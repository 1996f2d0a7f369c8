"""Request logs: each public format is read, nonsense is named by row and column, and the samples are made anew."""

import gzip
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from conftest import ROOT
from gdnspec.model.errors import SpecError
from gdnspec.traffic.formats import known
from gdnspec.traffic.log import Log
from gdnspec.traffic.request import Request

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURSTGPT = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
PLAIN = "arrival,prompt_tokens,output_tokens\n"
SECOND = 10**9


def read(tmp_path: Path, text: str, name: str = "log.csv", **options: object) -> list[Request]:
    file = tmp_path / name
    file.write_text(text)
    return list(Log(file, **options))  # type: ignore[arg-type]


def refused(tmp_path: Path, text: str, **options: object) -> str:
    with pytest.raises(SpecError) as error:
        read(tmp_path, text, **options)
    return str(error.value)


# --- formats ----------------------------------------------------------------------------------------------------


def test_azure(tmp_path: Path) -> None:
    text = AZURE + "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n"
    assert read(tmp_path, text) == [Request(0, 4808, 10), Request(52_000_000, 3180, 8)]
    with_zone = AZURE + "2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 00:00:01.009930+00:00,2399,6\n"
    assert read(tmp_path, with_zone) == [Request(0, 2162, 5), Request(SECOND, 2399, 6)]


def test_mooncake(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 27_482, "input_length": 1030, "output_length": 52, "hash_ids": [46, 47, 48]},
        {"timestamp": 30_535, "input_length": 600, "output_length": 26, "hash_ids": [46, 99]},
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    assert read(tmp_path, text, "log.jsonl") == [
        Request(0, 1030, 52, (46, 47, 48)), Request(3053 * 10**6, 600, 26, (46, 99))
    ]  # fmt: skip


def test_burstgpt_leaves_out_what_failed(tmp_path: Path) -> None:
    text = BURSTGPT + "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,0,0,0,API log\n118,GPT-4,417,276,693,API log\n"
    file = tmp_path / "log.csv"
    file.write_text(text)
    log = Log(file)
    assert list(log) == [Request(0, 472, 18), Request(113 * SECOND, 417, 276)]
    assert (log.requests, log.failed) == (2, 1)


def test_plain_csv_with_columns_of_any_name_and_order(tmp_path: Path) -> None:
    assert read(tmp_path, PLAIN + "0.5,10,2\n1.75,20,3\n") == [Request(0, 10, 2), Request(1_250_000_000, 20, 3)]
    text = "who,out,at,in\na,2,100,10\nb,3,101,20\n"
    formats = known(("at", "in", "out"))
    assert read(tmp_path, text, formats=formats) == [Request(0, 10, 2), Request(SECOND, 20, 3)]
    dated = PLAIN + "2025-01-01 00:00:00,10,2\n2025-01-01 00:00:02,20,3\n"
    assert read(tmp_path, dated)[1].arrival == 2 * SECOND


def test_packed_with_a_byte_order_mark_and_windows_lines(tmp_path: Path) -> None:
    text = "\ufeff" + (PLAIN + "0,10,2\n\n1,20,3\n").replace("\n", "\r\n")
    (tmp_path / "log.csv.gz").write_bytes(gzip.compress(text.encode()))
    assert len(list(Log(tmp_path / "log.csv.gz"))) == 2


@pytest.mark.parametrize("name", ["synthetic_azure.csv", "synthetic_mooncake.jsonl", "synthetic_burstgpt.csv"])
def test_the_samples_are_of_their_formats(name: str) -> None:
    log = Log(ROOT / "samples" / name)
    assert len(list(log)) + log.failed == 400
    kind = name.split("_")[1].split(".")[0]
    assert len(list(Log(ROOT / "samples" / name, kind=kind))) == log.requests


def test_the_script_makes_the_samples(tmp_path: Path) -> None:
    script = [sys.executable, ROOT / "tools" / "make_sample_logs.py", "--out", tmp_path]
    subprocess.run(script, check=True, capture_output=True)
    made = sorted(tmp_path.iterdir())
    assert len(made) == 4
    for file in made:
        assert file.name.startswith("synthetic_")
        assert file.read_bytes() == (ROOT / "samples" / file.name).read_bytes(), file.name


# --- nonsense ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (AZURE + "2023-11-16 18:17:03,-3,10\n", "line 2: ContextTokens: -3 is negative"),
        (AZURE + "2023-11-16 18:17:03,0,10\n", "line 2: ContextTokens: 0 is below 1"),
        (AZURE + "2023-11-16 18:17:03,12,ten\n", "line 2: GeneratedTokens: 'ten' is not a number"),
        (AZURE + "2023-11-16 18:17:03,12,\n", "line 2: GeneratedTokens: is empty"),
        (AZURE + "yesterday,12,10\n", "line 2: TIMESTAMP: 'yesterday' is not a date and time"),
        (PLAIN + "0,1.5,10\n", "line 2: prompt_tokens: 1.5 is not a whole number"),
        (PLAIN + "0,99999999999,10\n", "line 2: prompt_tokens: 99999999999 tokens are more than 16777216"),
        (PLAIN + "0,1e400,10\n", "line 2: prompt_tokens: '1e400' is not a finite number"),
        (PLAIN + "nan,10,10\n", "line 2: arrival: 'nan' is not a finite number"),
        (PLAIN + "0,10,10\n1,300000,10\n", "line 3: prompt_tokens: a prompt of 300000 tokens is over the limit"),
        (PLAIN + "5,10,10\n4,10,10\n", "line 3: arrival: 1 s before the row above: sort the log"),
        (PLAIN + "0,10\n", "line 2: output_tokens: 2 cells, the header has 3"),
        (PLAIN + "0,10,10,4\n", "line 2: 4 cells, the header has 3"),
        (BURSTGPT + "5,GPT-4,0,7,7,API log\n", "line 2: Request tokens: 0 is below 1"),
        ('{"timestamp": 1, "input_length": 3}\n', "line 1: output_length: is missing"),
        ('{"timestamp": 1, "input_length": 3, "output_length": "x"}\n', "line 1: output_length: 'x' is not a number"),
        ('{"timestamp": 1, "input_length": 3, "output_length": 1, "hash_ids": [1, 2]}\n',
         "line 1: hash_ids: 2 blocks, but 3 tokens have 0 or 1 of 512 tokens: set --block-tokens"),
        ('{"timestamp": 1, "input_length": 1100, "output_length": 1, "hash_ids": [1]}\n',
         "line 1: hash_ids: 1 blocks, but 1100 tokens have 2 or 3 of 512"),
        (PLAIN + '0,1,1\n"1,20,3\n', "line 3: not CSV"),
        (PLAIN + "0,1_0,1\n", "line 2: prompt_tokens: '1_0' is not a number"),
        ('{"timestamp": 1, "input_length": 3, "output_length": 1}\n[1]\n', "line 2: not a JSON object"),
        ('{"timestamp": 1, "input_length": 3, "output_length": 1}\n{"times\n', "line 2: not JSON"),
    ],
)  # fmt: skip
def test_a_row_of_nonsense_is_named_by_line_and_column(tmp_path: Path, text: str, said: str) -> None:
    message = refused(tmp_path, text)
    assert said in message
    assert "--skip-invalid" in message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no request"),
        (AZURE, "holds no request"),
        ("a,b,c\n1,2,3\n", "the columns a, b, c belong to no known format"),
        ("arrival,arrival,prompt_tokens,output_tokens\n0,0,1,1\n", "two columns 'arrival'"),
        (PLAIN + "x" * (1 << 21), "longer than"),
        ("x" * 200_000, "line 1"),
    ],
)
def test_what_is_no_log_is_refused(tmp_path: Path, text: str, said: str) -> None:
    assert said in refused(tmp_path, text)
    assert said in refused(tmp_path, text, skip_invalid=True), "nothing of it can be skipped"


def test_a_format_that_was_named_wants_its_columns(tmp_path: Path) -> None:
    said = refused(tmp_path, AZURE.replace("ContextTokens", "ContextToken") + "x,1,1\n", kind="azure")
    assert "line 1: no column 'ContextTokens'" in said
    assert "did you mean 'ContextToken'?" in said
    assert "no format 'azur'" in refused(tmp_path, AZURE, kind="azur")


def test_rows_are_skipped_on_request_and_counted(tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    file.write_text(PLAIN + "0,10,2\n1,-1,2\n2,10,x\n1.5,10,3\n0.5,10,3\n3,0,3\n")
    log = Log(file, skip_invalid=True)
    assert [r.output for r in log] == [2, 3]
    assert log.skipped == {"prompt_tokens": 2, "output_tokens": 1, "arrival": 1}


def test_one_quote_too_many_costs_its_own_row(tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    file.write_text(PLAIN + "0,10,2\n" + '"1,20,3\n' + "2,30,4\n" * 5000)
    log = Log(file, skip_invalid=True)
    assert len(list(log)) == 5001
    assert sum(log.skipped.values()) == 1


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_bytes(PLAIN.encode() + b"0,10,\xff\xfe\n")
    with pytest.raises(SpecError, match="not UTF-8 text"):
        list(Log(tmp_path / "log.csv"))
    (tmp_path / "log.csv.gz").write_bytes(b"no gzip")
    with pytest.raises(SpecError, match="not a whole gzip file"):
        list(Log(tmp_path / "log.csv.gz"))
    whole = gzip.compress((PLAIN + "0,10,2\n" * 1000).encode())
    (tmp_path / "log.csv.gz").write_bytes(whole[:20] + b"\xff" * 20 + whole[40:])
    with pytest.raises(SpecError, match="not a whole gzip file"):
        list(Log(tmp_path / "log.csv.gz"))
    with pytest.raises(SpecError, match="is not a file"):
        list(Log(tmp_path))


def test_a_log_is_streamed(tmp_path: Path) -> None:
    """From a pipe: the first requests are there while the writer has not written the rest."""
    pipe = tmp_path / "log.csv"
    os.mkfifo(pipe)
    goes_on = threading.Event()

    def write() -> None:
        with pipe.open("w") as out:
            out.write(PLAIN + "0,10,2\n" + "1,20,3\n" * 100_000)
            out.flush()
            goes_on.wait()
            out.write("2,bad,1\n")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        rows = iter(Log(pipe))
        assert next(rows) == Request(0, 10, 2)
        goes_on.set()
        with pytest.raises(SpecError, match="line 100003: prompt_tokens"):
            for _ in rows:
                pass
    finally:
        goes_on.set()
        writer.join()
