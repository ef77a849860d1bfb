"""The official openai client against the real server and the default model.

    openai_client_test.py --kvtide PATH [--model NAME] [unittest arguments]
"""

import argparse
import asyncio
import json
import signal
import socket
import sys
import tempfile
import threading
import time
import unittest

import openai

from kvtide_server import BudgetWatch, Server, eventually

OPTIONS = argparse.Namespace(kvtide="", model=[])
GREEDY = {"temperature": 0, "seed": 1}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_temperature",
        "description": "The temperature in a city now.",
        # A closed set of arguments: a small model cannot ramble inside the call.
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}, "unit": {"type": "string", "enum": ["celsius"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}


def words(seed, count):
    """A text that no other seed begins like."""
    return " ".join(f"{seed} note {i}: the {('red', 'green', 'blue')[i % 3]} module reads item {i * 7 % 31}." for i in range(count))


def start(folder, *flags, **options):
    return Server(OPTIONS.kvtide, folder, *OPTIONS.model, "--ctx-size", "2048", *flags, **options)


def read_stream(stream):
    """What a streamed chat said: content, tool calls by index, finish reason, usages with and without a choice."""
    content, calls, finish, usages = "", {}, None, {True: None, False: None}
    for chunk in stream:
        if chunk.usage:
            usages[bool(chunk.choices)] = chunk.usage
        for choice in chunk.choices:
            content += choice.delta.content or ""
            finish = choice.finish_reason or finish
            for part in choice.delta.tool_calls or []:
                call = calls.setdefault(part.index, {"id": "", "name": "", "arguments": ""})
                call["id"] = part.id or call["id"]
                if part.function:
                    call["name"] += part.function.name or ""
                    call["arguments"] += part.function.arguments or ""
    return content, [calls[index] for index in sorted(calls)], finish, usages


class OneServer(unittest.TestCase):
    """Scenarios that share a server; each uses sessions and texts of its own."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.server = start(cls.folder.name, "--parallel", "8", "--device-tokens", "16384", "--host-memory", "512M", "--max-body", "1M")
        cls.addClassCleanup(cls.server.stop)
        cls.client = cls.server.client()
        cls.model = cls.client.models.list().data[0].id

    def chat(self, content, **fields):
        messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
        return self.client.chat.completions.create(model=self.model, messages=messages, **GREEDY, **fields)

    def test_streamed_chat_with_tools_reuses_the_first_turn(self):
        hint = {"agent_hint": {"session_id": "tools-1", "parent_session_id": "tools-1"}}
        messages = [{"role": "system", "content": "You are a weather assistant. " + words("weather", 12)},
                    {"role": "user", "content": "How warm is it in Paris?"}]

        def turn(**fields):
            with BudgetWatch(self.server):
                return read_stream(self.chat(messages, tools=[WEATHER], stream=True, stream_options={"include_usage": True},
                                             max_tokens=96, extra_body=hint, **fields))

        _, calls, finish, usages = turn(tool_choice="required", parallel_tool_calls=False)
        self.assertEqual(finish, "tool_calls")
        self.assertEqual([call["name"] for call in calls][:1], ["get_temperature"])
        self.assertIn(json.loads(calls[0]["arguments"])["city"], ["Paris", "Oslo"])
        self.assertTrue(calls[0]["id"])
        self.assertEqual(usages[False].prompt_tokens_details.cached_tokens, 0)

        messages.append({"role": "assistant", "content": "", "tool_calls": [
            {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}} for call in calls]})
        messages.extend({"role": "tool", "tool_call_id": call["id"], "content": "21"} for call in calls)
        content, _, _, second = turn(tool_choice="none")
        cached = second[False].prompt_tokens_details.cached_tokens
        print(f"second turn: {cached} of {second[False].prompt_tokens} prompt tokens cached")
        self.assertGreater(cached, 0)
        # Also on the last chunk that has a choice: some clients read only those.
        self.assertEqual(second[True].prompt_tokens_details.cached_tokens, cached)

        messages += [{"role": "assistant", "content": content}, {"role": "user", "content": "Is that warm?"}]
        *_, third = turn(tool_choice="none")
        self.assertGreaterEqual(third[False].prompt_tokens_details.cached_tokens, cached)

    def test_receipts_agree_with_the_tiers(self):
        server, session = self.server, "round-1"
        server.end_sessions()
        self.chat(words("round", 30), max_tokens=4, extra_body={"agent_hint": {"session_id": session, "parent_session_id": session}})
        start_tiers = server.quiet_tiers()
        self.assertGreater(start_tiers["device"]["blocks"], 0)

        def move(verb):
            before = server.quiet_tiers()
            receipt = server.hint(verb, session, f"round-{verb}")
            after = server.quiet_tiers()
            change = {name: {key: after[name][key] - before[name][key] for key in ("used_bytes", "blocks")} for name in after}
            print(f"{verb}: {receipt['status']}, {receipt['blocks']} blocks, {receipt['bytes']} bytes, {receipt['from']} -> {receipt['to']};"
                  f" tiers changed {change}")
            return receipt, change

        offload, change = move("offload")
        self.assertEqual((offload["status"], offload["from"], offload["to"]), ("applied", "device", "host"))
        self.assertGreater(offload["bytes"], 0)
        self.assertEqual(change["device"], {"used_bytes": -offload["bytes"], "blocks": -offload["blocks"]})
        self.assertGreaterEqual(server.tiers()["host"]["blocks"], offload["blocks"])

        prefetch, change = move("prefetch")
        self.assertEqual((prefetch["status"], prefetch["from"], prefetch["to"]), ("applied", "host", "device"))
        self.assertEqual(prefetch["blocks"], offload["blocks"])
        self.assertEqual(change["device"], {"used_bytes": prefetch["bytes"], "blocks": prefetch["blocks"]})

        # The same hint again does nothing and gives the first receipt.
        (repeated,) = server.call("POST", "/kv/v1/hints", {"hint_id": "round-prefetch", "verb": "prefetch", "session_id": session})["receipts"]
        self.assertEqual((repeated["status"], repeated["bytes"]), ("duplicate", prefetch["bytes"]))

        evict, change = move("evict")
        self.assertEqual(evict["status"], "applied")
        self.assertEqual(change["device"]["used_bytes"] + change["host"]["used_bytes"], -evict["bytes"])
        self.assertEqual(server.hint("prefetch", session, "round-gone")["bytes"], 0)

    def test_a_management_request_is_answered_at_once_under_load(self):
        busy = [threading.Thread(target=self.chat, args=(words(f"busy-{i}", 30),), kwargs={"max_tokens": 32}) for i in range(6)]
        for thread in busy:
            thread.start()
        eventually("requests run", 20, lambda: self.server.stats()["requests_running"] > 0)
        for edit in ("prefetch", "offload", "evict"):
            body = {"model": self.model, "messages": [], "stream": False, "agent_hint": {
                "session_id": "busy-s", "parent_session_id": "busy-s",
                "context_management": {"manage_request": True, "edits": [{"type": edit, "target": "session"}]}}}
            began = time.monotonic()
            reply = self.server.call("POST", "/v1/chat/completions", body)
            took = time.monotonic() - began
            self.assertLess(took, 1.0)
            self.assertEqual(len(reply["choices"]), 1)
            self.assertEqual(reply["usage"]["total_tokens"], 0)
            self.assertEqual([r["status"] for r in reply["kv_hint_result"]["receipts"]], ["missing"])
        for thread in busy:
            thread.join(timeout=120)
            self.assertFalse(thread.is_alive())

    def test_malformed_bodies_are_refused_and_do_no_harm(self):
        def chat_body(**fields):
            return json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, **fields}).encode()

        refused = {
            "empty": b"", "no JSON": b"{", "a list": b"[]", "a number": b"1", "not UTF-8": b'{"messages":"\xff\xfe"}', "null": b"null",
            "deep": b"[" * 100_000, "deep object": b'{"a":' * 50_000, "no messages": b'{"model":"m"}',
            "messages is text": chat_body(messages="hi"), "message is a number": chat_body(messages=[1]), "role is a number": chat_body(
                messages=[{"role": 1, "content": "x"}]), "content is a number": chat_body(messages=[{"role": "user", "content": 1}]),
            "temperature is text": chat_body(temperature="hot"), "n is 0": chat_body(n=0), "n is huge": chat_body(n=10**9),
            "max_tokens is negative": chat_body(max_tokens=-5), "stop is a number": chat_body(stop=1), "tools is text": chat_body(tools="x"),
            "schema is wrong": chat_body(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": 1}}),
            "longer than the context": chat_body(messages=[{"role": "user", "content": "word " * 4000}]),
        }
        for what, body in refused.items():
            with self.subTest(what):
                status, _, text = self.server.raw("POST", "/v1/chat/completions", body)
                self.assertEqual(status, 400, text[:300])
                self.assertTrue(json.loads(text)["error"]["message"])
        with self.subTest("a body over the limit"):
            try:
                status, _, _ = self.server.raw("POST", "/v1/chat/completions", b" " * (2 << 20))
                self.assertEqual(status, 413)
            except (BrokenPipeError, ConnectionResetError):
                pass  # refused while we still wrote: as good
        for method, path, status in (("GET", "/v1/nothing", 404), ("GET", "/v1/chat/completions", 405), ("POST", "/kv/v1/tiers", 405)):
            with self.subTest(path):
                self.assertEqual(self.server.raw(method, path, b"{}" if method == "POST" else None)[0], status)
        for bytes_sent in (b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 100\r\n\r\n{", b"\x00\x01\x02\r\n\r\n", b"GET"):
            with socket.create_connection(("127.0.0.1", self.server.port), timeout=10) as broken:
                broken.sendall(bytes_sent)
        self.assertEqual(self.server.call("GET", "/health")["status"], "ok")

    def test_a_bad_hint_changes_no_answer(self):
        question = "Name three colours. " + words("colours", 6)
        expected = self.chat(question, max_tokens=12).choices[0].message.content
        self.assertTrue(expected)
        bad = [
            1, "offload", [], {}, {"session_id": 5}, {"session_id": "s" * 5000, "action": "offload"}, {"session_id": "bad", "action": "explode"},
            {"session_id": "bad", "context_management": {"edits": {"type": "evict"}}},
            {"session_id": "bad", "context_management": {"edits": [{"type": "evict", "target": "messages", "start": 9, "end": 2}] * 200}},
            {"session_id": "bad", "cache_control": {"type": "ephemeral", "ttl": -1}},
            {"session_id": "bad", "parent_session_id": {"a": 1}, "turn_num": "x"},
        ]
        for hint in bad:
            with self.subTest(str(hint)[:80]):
                reply = self.chat(question, max_tokens=12, extra_body={"agent_hint": hint})
                self.assertEqual(reply.choices[0].message.content, expected)


class CancelledStreams(unittest.TestCase):
    STREAMS = 64

    def test_64_streams_half_of_them_cancelled_leak_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            server = start(folder, "--parallel", "8", "--device-tokens", "16384", "--host-memory", "256M", "--max-queue", "128")
            try:
                counts, rss = [], []
                for round_number in range(3):  # the first warms up allocators and pools
                    with BudgetWatch(server):
                        asyncio.run(asyncio.wait_for(self.play(server, round_number), timeout=180))
                    eventually("all requests are gone", 30, lambda: self.idle(server))
                    server.end_sessions()
                    server.quiet_tiers()
                    counts.append(self.held(server))
                    rss.append(server.rss_bytes())
                    print(f"after round {round_number}: {counts[-1]}, RSS {rss[-1] >> 20} MiB")
                self.assertEqual(counts[1], counts[0])
                self.assertEqual(counts[2], counts[0])
                self.assertEqual(counts[0]["leases"], 0)
                # Not zero: freed memory is not always given back. Three rounds that leaked their KV would be far above.
                self.assertLess(rss[2] - rss[0], 64 << 20)
                stats = server.stats()
                self.assertEqual(stats["requests_total"], 3 * self.STREAMS)
                self.assertGreater(stats["requests_cancelled"], 0)
                self.assertEqual(stats["requests_failed"], 0)
                self.assertEqual(stats["byte_mismatches"], 0)
            finally:
                server.stop()

    @staticmethod
    def idle(server):
        stats = server.stats()
        return stats["requests_running"] == 0 and stats["requests_waiting"] == 0

    @staticmethod
    def held(server):
        stats = server.stats()
        held = {name: stats[name] for name in ("seqs_used", "cells_used", "blocks", "leases")}
        return held | {f"{name}_bytes": tier["used_bytes"] for name, tier in server.tiers().items()}

    async def play(self, server, round_number):
        async with server.client(openai.AsyncOpenAI) as client:
            async def one(index):
                name = f"leak-{round_number}-{index}"
                cancelled = index % 2 == 1
                # Without an end-of-text token the cancelled ones could not be done before we leave.
                stream = await client.chat.completions.create(
                    model="any", messages=[{"role": "user", "content": words(name, 3)}], stream=True, max_tokens=400 if cancelled else 16,
                    extra_body={"ignore_eos": True, "agent_hint": {"session_id": name, "parent_session_id": name}}, **GREEDY)
                chunks = 0
                async with stream:
                    async for _ in stream:
                        chunks += 1
                        if cancelled and chunks == 3:
                            break
                return chunks
            chunks = await asyncio.gather(*(one(index) for index in range(self.STREAMS)))
            self.assertTrue(all(chunks), "a stream said nothing")


class KilledServer(unittest.TestCase):
    def test_kill_under_load_then_serves_at_once(self):
        with tempfile.TemporaryDirectory() as folder:
            server = start(folder, "--parallel", "4", "--host-memory", "256M")
            first_start = server.start_seconds
            speaking, ended = threading.Semaphore(0), []

            def load(index):
                try:
                    stream = server.client().chat.completions.create(
                        model="any", messages=[{"role": "user", "content": words(f"kill-{index}", 10)}], stream=True, max_tokens=1000,
                        extra_body={"ignore_eos": True, "agent_hint": {"session_id": f"kill-{index}"}}, **GREEDY)
                    for number, _ in enumerate(stream):
                        if number == 2:
                            speaking.release()
                    ended.append("done")
                except Exception as error:  # any way in which a broken connection shows
                    ended.append(type(error).__name__)

            threads = [threading.Thread(target=load, args=(index,)) for index in range(8)]
            try:
                for thread in threads:
                    thread.start()
                self.assertTrue(speaking.acquire(timeout=60) and speaking.acquire(timeout=60), "no load came up")
                server.process.send_signal(signal.SIGKILL)
                server.process.wait(timeout=10)
            finally:
                server.kill()
            for thread in threads:
                thread.join(timeout=60)
                self.assertFalse(thread.is_alive(), "a client hangs after the server's death")

            began = time.monotonic()
            again = start(folder, "--parallel", "4", "--host-memory", "256M", port=server.port)
            try:
                reply = again.client().chat.completions.create(
                    model="any", messages=[{"role": "user", "content": "hello"}], max_tokens=4, **GREEDY)
                took = time.monotonic() - began
                print(f"killed with clients {ended}; first start {first_start:.1f} s, restart to first reply {took:.1f} s")
                self.assertEqual(reply.choices[0].finish_reason, "length" if reply.usage.completion_tokens == 4 else "stop")
                self.assertLess(took, first_start + 10)
            finally:
                again.stop()


class Pressure(unittest.TestCase):
    SESSIONS = 8

    def test_budgets_hold_when_nothing_fits(self):
        with tempfile.TemporaryDirectory() as folder:
            server = start(folder, "--parallel", "2", "--device-tokens", "4096", "--host-memory", "32M")
            try:
                client = server.client()
                chats = [[{"role": "user", "content": words(f"pressure-{i}", 28)}] for i in range(self.SESSIONS)]

                def turn(index):
                    hint = {"agent_hint": {"session_id": f"pressure-{index}", "parent_session_id": f"pressure-{index}"}}
                    reply = client.chat.completions.create(model="any", messages=chats[index], max_tokens=8, extra_body=hint, **GREEDY)
                    chats[index].append({"role": "assistant", "content": reply.choices[0].message.content})
                    chats[index].append({"role": "user", "content": "Go on."})
                    return reply.usage

                with BudgetWatch(server) as watch:
                    for _ in range(2):
                        for index in range(self.SESSIONS):
                            usage = turn(index)
                            self.assertLessEqual(usage.prompt_tokens_details.cached_tokens, usage.prompt_tokens)
                stats = server.stats()
                evicted = {name: stats[name] for name in stats if "evicted" in name}
                print(f"looked {watch.looks} times; evicted {evicted}; tiers {server.tiers()}")
                self.assertGreater(sum(evicted.values()), 0, "there was no pressure")
                self.assertEqual(stats["requests_failed"], 0)
                self.assertEqual(stats["byte_mismatches"], 0)
                self.assertEqual(server.quiet_tiers()["host"]["corrupt_loads"], 0)
            finally:
                server.stop()


def main():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--kvtide", required=True, help="the kvtide program")
    parser.add_argument("--model", help="as kvtide serve takes it; the default model without")
    arguments, rest = parser.parse_known_args()
    OPTIONS.kvtide = arguments.kvtide
    OPTIONS.model = ["--model", arguments.model] if arguments.model else []
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)


if __name__ == "__main__":
    main()
