"""A real OpenAI-compatible server over a tiny model: what arrives together is decoded as one batch, well or badly."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Empty, Queue
from typing import Any

from helpers import noisy_copy
from subjects import judge

from specproof import Engine, EngineConfig, Request
from specproof.baselines import Dsd

GATHER = 0.05  # seconds that a batch waits for further rows
Decode = Callable[[Sequence[Sequence[int]], int], list[list[int]]]  # prompts, limit -> emitted ids


def sound(prompts: Sequence[Sequence[int]], limit: int) -> list[list[int]]:
    """Our engine, speculative, with a draft that is right often but not always."""
    engine = Engine(judge(), noisy_copy("llama"), EngineConfig(batch_size=8, num_draft_tokens=3))
    outputs = engine.generate([Request(tuple(prompt), max_new_tokens=limit) for prompt in prompts])
    return [list(output.token_ids) for output in outputs]


def plain(prompts: Sequence[Sequence[int]], limit: int) -> list[list[int]]:
    """Our engine without speculation."""
    engine = Engine(judge(), None, EngineConfig(method="target-only", batch_size=8))
    outputs = engine.generate([Request(tuple(prompt), max_new_tokens=limit) for prompt in prompts])
    return [list(output.token_ids) for output in outputs]


def broken(prompts: Sequence[Sequence[int]], limit: int) -> list[list[int]]:
    """A loop that does not realign the KV of rows that got ragged. A row alone has nobody to differ from."""
    loop = Dsd(num_draft_tokens=3, max_new_tokens=limit, not_realigned=True)
    return loop.generate(judge().model, noisy_copy("llama").model, prompts)


@dataclass
class Switches:
    """How the server behaves. Prompts are tuples of ids.

    tells: what it tells of token ids: token_ids, as-ids, llama.cpp, sglang or nothing. fails: prompts answered by 500.
    garbage: prompts answered by no JSON. resets: prompts whose connection is cut. slow: prompts that take a second.
    busy: how many requests are turned away by 429 before the next is served. key: what it wants to be given.
    takes_ids: whether a prompt may be a list. models: as listed. lives: batches before it goes away.
    """

    decode: Decode = sound
    tells: str = "token_ids"
    takes_ids: bool = True
    fails: tuple[tuple[int, ...], ...] = ()
    garbage: tuple[tuple[int, ...], ...] = ()
    resets: tuple[tuple[int, ...], ...] = ()
    slow: tuple[tuple[int, ...], ...] = ()
    busy: int = 0
    lives: float = float("inf")
    key: str | None = None
    models: tuple[str, ...] = ("tiny",)
    encode: Callable[[str], list[int]] | None = None
    decode_text: Callable[[Sequence[int]], str] = lambda ids: " ".join(f"t{token}" for token in ids)
    batches: list[int] = field(default_factory=list)  # rows of each batch that was decoded


class Batcher(threading.Thread):
    """Takes what arrives within GATHER of the first as one batch."""

    def __init__(self, switches: Switches) -> None:
        super().__init__(daemon=True)
        self.switches, self.queue = switches, Queue()

    def ask(self, prompt: Sequence[int], limit: int) -> list[int]:
        done: Queue = Queue()
        self.queue.put((prompt, limit, done))
        found = done.get()
        if isinstance(found, Exception):
            raise found
        return found

    def run(self) -> None:
        while True:
            batch = [self.queue.get()]
            try:
                while len(batch) < 8:
                    batch.append(self.queue.get(timeout=GATHER))
            except Empty:
                pass
            if None in batch:
                return
            prompts, limits, waiting = zip(*batch, strict=True)
            self.switches.batches.append(len(batch))
            try:
                outputs = self.switches.decode(prompts, max(limits))
            except Exception as error:  # told to the client, as a server would
                outputs = [error] * len(batch)
            for output, limit, done in zip(outputs, limits, waiting, strict=True):
                done.put(output[:limit] if isinstance(output, list) else output)


@contextmanager
def serve(switches: Switches) -> Iterator[str]:
    """Yields the URL."""
    batcher = Batcher(switches)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            if switches.key and self.headers.get("Authorization") != f"Bearer {switches.key}":
                return self.reply({"error": {"message": "no such key"}}, 401)
            if self.path != "/v1/models":
                return self.reply({"detail": "Not Found"}, 404)
            return self.reply({"object": "list", "data": [{"id": name} for name in switches.models]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            native = self.path == "/generate"
            if self.path != "/v1/completions" and not (native and switches.tells == "sglang"):
                return self.reply({"detail": "Not Found"}, 404)
            if not native and body["model"] not in switches.models:
                return self.reply({"error": {"message": f"The model `{body['model']}` does not exist."}}, 404)
            prompt = body["input_ids"] if native else body["prompt"]
            sampling = body["sampling_params"] if native else body
            assert sampling["temperature"] == 0
            if isinstance(prompt, str):
                prompt = switches.encode(prompt)
            elif not switches.takes_ids:
                return self.reply({"message": "prompt is not a string"}, 400)
            if len(switches.batches) >= switches.lives:
                server.shutdown()
                server.server_close()
                self.close_connection = True
                return self.connection.close()
            if switches.busy:
                switches.busy -= 1
                return self.reply({"error": {"message": "too many requests"}}, 429)
            if tuple(prompt) in switches.fails:
                return self.reply({"error": {"message": "out of memory"}}, 500)
            if tuple(prompt) in switches.resets:
                self.close_connection = True
                return self.connection.close()
            if tuple(prompt) in switches.slow:
                threading.Event().wait(1.0)
            if tuple(prompt) in switches.garbage:
                return self.send(b"<html>oops", 200)
            ids = batcher.ask(prompt, sampling["max_new_tokens" if native else "max_tokens"])
            return self.reply(_native(ids) if native else self.completion(body, prompt, ids))

        def completion(self, body: dict, prompt: Sequence[int], ids: list[int]) -> dict:
            choice: dict[str, Any] = {"index": 0, "text": switches.decode_text(ids), "finish_reason": "length"}
            if switches.tells == "token_ids" and body.get("return_token_ids"):
                choice |= {"token_ids": ids, "prompt_token_ids": list(prompt), "stop_reason": None}
            if switches.tells == "as-ids" and body.get("return_tokens_as_token_ids") and body.get("logprobs"):
                choice["logprobs"] = {"tokens": [f"token_id:{token}" for token in ids]}
            elif switches.tells == "llama.cpp" and body.get("logprobs"):
                choice["logprobs"] = {"content": [{"id": token, "token": f"t{token}"} for token in ids]}
            elif body.get("logprobs"):
                choice["logprobs"] = {"tokens": [f"t{token}" for token in ids]}
            return {"id": "cmpl-1", "object": "text_completion", "choices": [choice]}

        def reply(self, document: dict, status: int = 200) -> None:
            self.send(json.dumps(document).encode(), status)

        def send(self, data: bytes, status: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threads = [batcher, threading.Thread(target=server.serve_forever, daemon=True)]
        for thread in threads:
            thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            batcher.queue.put(None)


def _native(ids: list[int]) -> dict:
    return {"text": "", "output_ids": ids, "meta_info": {"id": "1", "finish_reason": {"type": "length", "length": 1}}}
