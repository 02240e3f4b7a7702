#!/usr/bin/env python3
"""Score a running server on the question set in bench/questions. Standard library only.

    python bench/score.py http://127.0.0.1:8000 [--key KEY] [--half FOLDER] [--answers] [--json FILE] [--keep]

The script creates a domain, uploads FOLDER/documents (default: `questions` beside this script), waits until all
documents are indexed or failed, and sends each question to `POST /api/domains/{id}/documents/search` with topK 5.

A hit is right if its document is right and its text has all `must_contain` strings of one answer. Strings are compared
after NFKC, without white space and case. The rank of an answer is the position of the first right hit.

- hit@1, hit@5 and MRR@5 have their usual meaning. A comparison (`need: all`) needs both answers: hit@1 means that one
  of them is first, hit@5 that both are among the five hits, and the reciprocal rank is the mean of both. `any@5` also
  counts comparisons with only one of the two answers.
- `reach` is the share of questions whose answer is contained in one indexed passage, at any rank. Parsing and chunking
  lose the share 1 - reach, and ranking loses reach - hit@5.
- The script searches follow-ups twice: alone (kind `followup`) and appended to their first question (`followup+first`).
- Questions without an answer are not part of these figures. The script prints the share of them without a hit, and
  compares the relevance of their best hit with that of answerable questions (AUC: 0.5 is chance, 1 separates all).

With --answers, the script asks each question over the WebSocket in a separate conversation (follow-ups after their
first question). It counts four figures: contained (the answer's text has the value of one answer, or of both answers
of a comparison), cited (a reference to the right document whose passage has all `must_contain` strings), both, and
declined (no reference at all), separately for questions with and without an answer.
"""

import argparse
import base64
import json
import os
import pathlib
import re
import socket
import ssl
import struct
import time
import unicodedata
import urllib.error
import urllib.parse
import urllib.request
import uuid


def fold(text):
    return re.sub(r"\s+", "", unicodedata.normalize("NFKC", text)).casefold()


class Server:
    def __init__(self, base, key):
        self.base, self.headers = base.rstrip("/"), {"Authorization": f"Bearer {key}"} if key else {}

    def call(self, method, path, body=None, raw=None, kind="application/json", patience=120):
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        until = time.time() + patience
        while True:
            request = urllib.request.Request(
                self.base + path, data, {**self.headers, "Content-Type": kind}, method=method
            )
            try:
                with urllib.request.urlopen(request, timeout=120) as answer:
                    text = answer.read()
                    return json.loads(text) if text else None
            except urllib.error.HTTPError as exc:
                text = exc.read().decode("utf-8", "replace")
                if exc.code not in (429, 503) or time.time() > until:
                    raise SystemExit(f"{method} {path}: {exc.code} {text[:500]}") from None
                time.sleep(min(float(exc.headers.get("Retry-After") or 1), 30))

    def upload(self, domain, path):
        mark = uuid.uuid4().hex
        name = path.name.replace('"', "")
        raw = b"".join(
            [
                f'--{mark}\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n'.encode(),
                b"Content-Type: application/octet-stream\r\n\r\n",
                path.read_bytes(),
                f"\r\n--{mark}--\r\n".encode(),
            ]
        )
        return self.call(
            "POST", f"/api/domains/{domain}/documents", raw=raw, kind=f"multipart/form-data; boundary={mark}"
        )["items"][0]


class Socket:
    """A minimal WebSocket client for text frames (RFC 6455)."""

    def __init__(self, server, timeout=180):
        url = urllib.parse.urlsplit(server.base)
        port = url.port or (443 if url.scheme == "https" else 80)
        self.s = socket.create_connection((url.hostname, port), timeout=timeout)
        if url.scheme == "https":
            self.s = ssl.create_default_context().wrap_socket(self.s, server_hostname=url.hostname)
        lines = [
            f"GET {url.path}/ws HTTP/1.1",
            f"Host: {url.netloc}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Version: 13",
            f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
            *(f"{k}: {v}" for k, v in server.headers.items()),
        ]
        self.s.sendall("\r\n".join([*lines, "", ""]).encode())
        self.f = self.s.makefile("rb")
        status = self.f.readline()
        if b" 101 " not in status:
            raise SystemExit(f"/ws: {status!r}")
        while self.f.readline().strip():
            pass

    def send(self, text, opcode=1):
        data, mask = text if isinstance(text, bytes) else text.encode(), os.urandom(4)
        n = len(data)
        size = (
            bytes([0x80 | n])
            if n < 126
            else b"\xfe" + struct.pack(">H", n)
            if n < 65536
            else b"\xff" + struct.pack(">Q", n)
        )
        self.s.sendall(bytes([0x80 | opcode]) + size + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(data)))

    def receive(self):
        parts = b""
        while True:
            head = self.f.read(2)
            if len(head) < 2:
                raise SystemExit("/ws was closed")
            opcode, n = head[0] & 15, head[1] & 127
            n = (
                struct.unpack(">H", self.f.read(2))[0]
                if n == 126
                else struct.unpack(">Q", self.f.read(8))[0]
                if n == 127
                else n
            )
            data = self.f.read(n)
            if opcode == 9:
                self.send(data, 10)
            elif opcode == 8:
                raise SystemExit(f"/ws was closed: {data[2:]!r}")
            elif opcode in (0, 1, 2):
                parts += data
                if head[0] & 0x80:
                    return json.loads(parts)


def text_of(hit):
    return fold("\n".join(s["text"] for s in hit["sentences"]))


def right(name, text, answer):
    return name == answer["document"] and all(fold(m) in text for m in answer["must_contain"])


def rank_all(hits, answers):
    """Return, for each answer, the rank of the first right hit, or None."""
    texts = [(h["documentName"], text_of(h)) for h in hits]
    return [next((i for i, (n, t) in enumerate(texts, 1) if right(n, t, a)), None) for a in answers]


def figures(entry, ranks):
    hit_ranks = [r for r in ranks if r]
    both = entry.get("need") == "all"
    best = min(hit_ranks, default=None)
    return {
        "hit@1": float(best == 1),
        "hit@5": float(len(hit_ranks) == len(ranks) if both else bool(hit_ranks)),
        "mrr": sum(1 / r for r in hit_ranks) / len(ranks) if both else (1 / best if best else 0.0),
        "any@5": float(bool(hit_ranks)),
    }


def mean(values):
    values = list(values)
    return sum(values) / len(values) if values else None


def auc(yes, no):
    pairs = [(a > b) + 0.5 * (a == b) for a in yes for b in no]
    return mean(pairs)


def show(title, rows, columns):
    print(f"\n{title}")
    wide = 2 + max(16, *map(len, rows))
    print(f"{'':{wide}s}{'n':>5s}" + "".join(f"{c:>11s}" for c in columns))
    for name, row in rows.items():
        print(
            f"{name:{wide}s}{row['n']:5d}"
            + "".join(f"{'-':>11s}" if row.get(c) is None else f"{row[c]:11.3f}" for c in columns)
        )


def summarise(entries, columns):
    return {"n": len(entries), **{c: mean(e[c] for e in entries if e.get(c) is not None) for c in columns}}


def group(results, by, columns):
    names = list(dict.fromkeys(r[by] for r in results))
    return {n: summarise([r for r in results if r[by] == n], columns) for n in names}


def search(server, domain, questions):
    results, tops = [], {True: [], False: []}
    by_id = {e["id"]: e for e in questions}
    for e in questions:
        queries = [(e["kind"], e["question"])]
        if e.get("after"):
            queries.append((e["kind"] + "+first", by_id[e["after"]]["question"] + " " + e["question"]))
        for kind, query in queries:
            answer = server.call("POST", f"/api/domains/{domain}/documents/search", {"query": query, "topK": 5})
            hits = answer["hits"]
            top = max((h.get("relevanceScore") or 0.0 for h in hits), default=0.0)
            row = {
                "id": e["id"],
                "kind": kind,
                "lang": e["lang"],
                "decline": e["decline"],
                "hits": len(hits),
                "top": top,
                "tookMs": answer.get("tookMs"),
            }
            if e["decline"]:
                tops[True].append(top)
            else:
                row["ranks"] = rank_all(hits, e["answers"])
                row.update(figures(e, row["ranks"]))
                row["docs"] = sorted({a["document"] for a in e["answers"]})
                row["shown"] = [h["documentName"] for h in hits]
                if kind == e["kind"]:
                    tops[False].append(top)
            results.append(row)
    return results, answer.get("mode"), tops


def reach(server, domain, questions):
    """Return, by question, 1.0 if its answer (for comparisons both) is contained in one indexed passage, else 0.0.

    Questions without an answer have None.
    """
    passages = {}
    for item in server.call("GET", f"/api/domains/{domain}/documents")["items"]:
        texts, offset = [], 0
        while item["status"] == "indexed":
            page = server.call("GET", f"/api/domains/{domain}/documents/{item['id']}/chunks?offset={offset}&limit=200")[
                "items"
            ]
            texts += [fold(c["text"]) for c in page]
            offset += len(page)
            if len(page) < 200:
                break
        passages[item["name"]] = texts
    reached = {}
    for e in questions:
        contained = [any(right(a["document"], t, a) for t in passages.get(a["document"], ())) for a in e["answers"]]
        reached[e["id"]] = float((all if e.get("need") == "all" else any)(contained)) if contained else None
    return reached


def said(text, value):
    return any(fold(v) in text for v in value.split("|"))


def ask(server, domain, questions):  # noqa: C901
    results, chunks = [], {}
    by_id = {e["id"]: e for e in questions}

    def passage(reference):
        key = reference.get("chunkId")
        if key not in chunks:
            try:
                chunks[key] = server.call("GET", f"/api/domains/{domain}/chunks/{key}")["chunk"]["text"]
            except (SystemExit, KeyError, TypeError):
                chunks[key] = ""
        return fold(chunks[key] + "\n" + (reference.get("citedText") or ""))

    def turn(conversation, content):
        ws, text = Socket(server), ""
        ws.send(json.dumps({"type": "message", "conversationId": conversation, "content": content}))
        while True:
            event = ws.receive()
            if event["type"] == "text" and not event.get("agent"):
                text += event["text"]
            elif event["type"] == "step_reset":
                text = ""
            elif event["type"] == "error" and "turnId" not in event and event.get("code") == "RATE_LIMITED":
                time.sleep(2)
                ws.send(json.dumps({"type": "message", "conversationId": conversation, "content": content}))
            elif event["type"] in ("done", "error", "interrupted"):
                ws.s.close()
                return text, event.get("references") or [], event["type"]

    for e in questions:
        conversation = server.call("POST", "/api/conversations", {"domainId": domain})["id"]
        if e.get("after"):
            turn(conversation, by_id[e["after"]]["question"])
        started = time.time()
        text, references, end = turn(conversation, e["question"])
        row = {
            "id": e["id"],
            "kind": e["kind"],
            "lang": e["lang"],
            "end": end,
            "seconds": round(time.time() - started, 2),
            "answer": text[:600],
            "cited documents": [r.get("documentName") for r in references],
        }
        if e["decline"]:
            row["declined right"] = float(not references)
        else:
            join = all if e.get("need") == "all" else any
            folded = fold(text)
            row["contained"] = float(
                join(all(said(folded, v) for v in a.get("value") or a["must_contain"]) for a in e["answers"])
            )
            row["cited"] = float(
                join(any(right(r.get("documentName"), passage(r), a) for r in references) for a in e["answers"])
            )
            row["both"] = row["contained"] * row["cited"]
            row["declined wrong"] = float(not references)
        results.append(row)
    return results


def main():  # noqa: C901
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("base")
    parser.add_argument("--key", default=os.environ.get("AGENTIC_RAG_KEY", ""))
    parser.add_argument(
        "--half",
        type=pathlib.Path,
        default=pathlib.Path(__file__).resolve().parent / "questions",
        help="folder with documents/ and questions.jsonl",
    )
    parser.add_argument("--answers", action="store_true", help="ask over the WebSocket as well")
    parser.add_argument("--json", type=pathlib.Path, help="write all results there")
    parser.add_argument("--domain", help="one that holds the documents already; nothing is uploaded")
    parser.add_argument("--keep", action="store_true", help="do not delete the domain afterwards")
    parser.add_argument("--wait", type=float, default=900, help="seconds to wait for indexing")
    parser.add_argument("--settings", default="{}", help='JSON for PATCH of the domain, such as \'{"reranker": "…"}\'')
    args = parser.parse_args()
    server = Server(args.base, args.key)
    questions = [json.loads(line) for line in (args.half / "questions.jsonl").open(encoding="utf-8")]
    domain = args.domain or server.call("POST", "/api/domains", {"name": f"questions {uuid.uuid4().hex[:6]}"})["id"]
    report = {"half": {"o": "open", "k": "kept"}.get(questions[0]["id"][0], args.half.name), "domain": domain}
    try:
        if settings := json.loads(args.settings):
            server.call("PATCH", f"/api/domains/{domain}", {"settings": settings})
        if not args.domain:
            started = time.time()
            for path in sorted((args.half / "documents").iterdir()):
                item = server.upload(domain, path)
                if item["status"] == "refused":
                    print(f"refused: {path.name}: {item['error']['message']}")
            while True:
                items = server.call("GET", f"/api/domains/{domain}/documents")["items"]
                if all(
                    i["status"] == "failed" or (i["status"] == "indexed" and i.get("denseState") != "pending")
                    for i in items
                ):
                    break
                if time.time() - started > args.wait:
                    print(
                        "not indexed in time:",
                        [i["name"] for i in items if i["status"] not in ("indexed", "failed")] or "vectors pending",
                    )
                    break
                time.sleep(0.5)
            report["documents"] = [
                {k: i.get(k) for k in ("name", "status", "denseState", "pageCount", "chunkCount", "error")}
                for i in items
            ]
            print(
                f"{sum(i['status'] == 'indexed' for i in items)} of {len(items)} documents indexed "
                f"in {time.time() - started:.0f} s, "
                f"{sum(i['chunkCount'] or 0 for i in items)} chunks"
            )
            for i in items:
                if i["status"] == "failed":
                    print(f"failed: {i['name']}: {i.get('error')}")
        results, mode, tops = search(server, domain, questions)
        columns = ["hit@1", "hit@5", "mrr", "any@5", "reach"]
        whole = reach(server, domain, questions)
        for r in results:
            r["reach"] = whole[r["id"]]
        answerable = [r for r in results if not r["decline"]]
        plain = [r for r in answerable if not r["kind"].endswith("+first")]
        kinds = group(answerable, "kind", columns)
        kinds["all"] = summarise(plain, columns)
        languages = group(plain, "lang", columns)
        by_document = {}
        for r in plain:
            if len(r["docs"]) == 1:
                by_document.setdefault(r["docs"][0], []).append(r)
        documents = {k: summarise(v, columns) for k, v in sorted(by_document.items())}
        unanswerable = {
            "n": len(tops[True]),
            "no hits": mean(float(r["hits"] == 0) for r in results if r["decline"]),
            "auc of relevance": auc(tops[False], tops[True]),
        }
        report.update(
            mode=mode,
            search={
                "kinds": kinds,
                "languages": languages,
                "documents": documents,
                "unanswerable": unanswerable,
                "results": results,
            },
        )
        print(f"mode: {mode}; median search {sorted(r['tookMs'] or 0 for r in results)[len(results) // 2]:.0f} ms")
        show("search, by kind", kinds, columns)
        show("search, by language of the question", languages, columns)
        show("search, by document", documents, columns)
        print(
            f"\nquestions without an answer: {unanswerable['n']}, with no hit "
            f"{unanswerable['no hits']:.2f}, AUC of the best hit's relevance {unanswerable['auc of relevance']:.2f}"
        )
        if args.answers:
            answers = ask(server, domain, questions)
            columns = ["contained", "cited", "both", "declined wrong", "declined right"]
            kinds = {**group(answers, "kind", columns), "all": summarise(answers, columns)}
            languages = group(answers, "lang", columns)
            report["answers"] = {"kinds": kinds, "languages": languages, "results": answers}
            short = {"declined wrong": "decl.wrong", "declined right": "decl.right"}

            def rename(rows):
                return {n: {short.get(k, k): v for k, v in r.items()} for n, r in rows.items()}

            show("answers, by kind", rename(kinds), [short.get(c, c) for c in columns])
            show("answers, by language of the question", rename(languages), [short.get(c, c) for c in columns])
            odd = [r for r in answers if r["end"] != "done"]
            if odd:
                print("turns that did not end with done:", [(r["id"], r["end"]) for r in odd])
        if args.json:
            args.json.write_text(json.dumps(report, ensure_ascii=False, indent=1), encoding="utf-8")
        brief = {k: report[k] for k in ("half", "mode")} | {
            "search": {
                k: {c: None if v is None else round(v, 3) for c, v in r.items()}
                for k, r in report["search"]["kinds"].items()
            }
        }
        if args.answers:
            brief["answers"] = {
                k: {c: None if v is None else round(v, 3) for c, v in r.items()}
                for k, r in report["answers"]["kinds"].items()
            }
        print("\n" + json.dumps(brief, ensure_ascii=False))
    finally:
        if not args.keep and not args.domain:
            server.call("DELETE", f"/api/domains/{domain}")


if __name__ == "__main__":
    main()
