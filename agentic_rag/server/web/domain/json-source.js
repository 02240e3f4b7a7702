// A parser for JSON that a user types. It returns the place of each value and of an error.
//
// Pure. A place is `{start, end, line, column}`: offsets in the text, and line and column counted from 1. A path is
// written as the server writes it: the keys joined by dots, such as `mcpServers.github.args.1`.

/** Parse a text. Returns `{value, places, error}`:
 *
 * - `value`: the parsed value; undefined after an error.
 * - `places`: the place of each path, where "" is the whole text. After an error, it has the values before the error.
 * - `error`: null, or `{code, line, column, start, key?}`. */
export function readJson(text) {
  const reader = new Reader(text);
  try {
    reader.space();
    const value = reader.value("");
    reader.space();
    if (reader.at < text.length) reader.fail("after");
    return { value, places: reader.places, error: null };
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    return {
      value: undefined,
      places: reader.places,
      error: { ...reader.point(error.at), ...error.facts, code: error.code, start: error.at },
    };
  }
}

/** Return the place of a path that the server sent. If the text lacks the path, return the place of the longest
 * beginning of the path that exists. A pasted text may lack the first keys (`settings`, `mcpServers`). */
export function placeOf(places, path) {
  const keys = path.split(".");
  for (let skip = 0; skip <= Math.min(2, keys.length); skip += 1) {
    for (let length = keys.length; length > skip; length -= 1) {
      const place = places.get(keys.slice(skip, length).join("."));
      if (place) return place;
    }
  }
  return places.get("") ?? null;
}

const DEEPEST = 64;
const LITERALS = { t: ["true", true], f: ["false", false], n: ["null", null] };
const ESCAPES = { '"': '"', "\\": "\\", "/": "/", b: "\b", f: "\f", n: "\n", r: "\r", t: "\t" };
const NUMBER = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?/y;

class Problem extends Error {
  constructor(code, at, facts) {
    super(code);
    Object.assign(this, { code, at, facts });
  }
}

class Reader {
  constructor(text) {
    this.text = text;
    this.at = 0;
    this.depth = 0;
    this.places = new Map();
    this.starts = [0];
    for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", at + 1)) this.starts.push(at + 1);
  }

  fail(code, at = this.at, facts = {}) {
    throw new Problem(code, at, facts);
  }

  point(at) {
    let low = 0;
    for (let high = this.starts.length; high - low > 1;) {
      const middle = (low + high) >> 1;
      if (this.starts[middle] <= at) low = middle;
      else high = middle;
    }
    return { line: low + 1, column: at - this.starts[low] + 1 };
  }

  keep(path, start) {
    this.places.set(path, { start, end: this.at, ...this.point(start) });
  }

  space() {
    while (" \t\n\r".includes(this.text[this.at] ?? "x")) this.at += 1;
    if (this.text.startsWith("//", this.at) || this.text.startsWith("/*", this.at)) this.fail("comment");
  }

  value(path) {
    const start = this.at;
    const value = this.read(path);
    this.keep(path, start);
    return value;
  }

  read(path) {
    const first = this.text[this.at];
    if (first === undefined) this.fail("end");
    if (first === "{") return this.object(path);
    if (first === "[") return this.list(path);
    if (first === '"') return this.string();
    if (first === "'") this.fail("quote");
    const [word, literal] = LITERALS[first] ?? [];
    if (word && this.text.startsWith(word, this.at)) {
      this.at += word.length;
      return literal;
    }
    NUMBER.lastIndex = this.at;
    const number = NUMBER.exec(this.text);
    if (!number) this.fail("value");
    this.at += number[0].length;
    return Number(number[0]);
  }

  deeper() {
    this.depth += 1;
    if (this.depth > DEEPEST) this.fail("deep");
    this.at += 1;
    this.space();
  }

  object(path) {
    const object = Object.create(null);
    const places = new Map();
    this.deeper();
    if (this.text[this.at] !== "}") {
      for (;;) {
        if (this.text[this.at] !== '"')
          this.fail(this.text[this.at] === "}" ? "comma" : this.text[this.at] === undefined ? "end" : "key");
        const start = this.at;
        const key = this.string();
        if (places.has(key)) this.fail("twice", start, { key });
        places.set(key, start);
        this.space();
        if (this.text[this.at] !== ":") this.fail("colon");
        this.at += 1;
        this.space();
        object[key] = this.value(path ? `${path}.${key}` : key);
        this.space();
        if (this.text[this.at] !== ",") break;
        this.at += 1;
        this.space();
      }
      if (this.text[this.at] !== "}") this.fail(this.text[this.at] === undefined ? "end" : "between");
    }
    this.at += 1;
    this.depth -= 1;
    return Object.fromEntries(Object.entries(object));
  }

  list(path) {
    const values = [];
    this.deeper();
    if (this.text[this.at] !== "]") {
      for (;;) {
        if (this.text[this.at] === "]") this.fail("comma");
        values.push(this.value(path ? `${path}.${values.length}` : `${values.length}`));
        this.space();
        if (this.text[this.at] !== ",") break;
        this.at += 1;
        this.space();
      }
      if (this.text[this.at] !== "]") this.fail(this.text[this.at] === undefined ? "end" : "between");
    }
    this.at += 1;
    this.depth -= 1;
    return values;
  }

  string() {
    const start = this.at;
    let text = "";
    this.at += 1;
    for (;;) {
      const character = this.text[this.at];
      if (character === undefined || character === "\n") this.fail("string", start);
      if (character === '"') break;
      if (character < " ") this.fail("control");
      if (character !== "\\") {
        text += character;
        this.at += 1;
        continue;
      }
      const next = this.text[this.at + 1];
      const code = this.text.slice(this.at + 2, this.at + 6);
      if (next === "u" && /^[\da-fA-F]{4}$/.test(code)) {
        text += String.fromCharCode(Number.parseInt(code, 16));
        this.at += 6;
      } else if (next in ESCAPES) {
        text += ESCAPES[next];
        this.at += 2;
      } else this.fail("escape");
    }
    this.at += 1;
    return text;
  }
}
