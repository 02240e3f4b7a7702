// Drafts: unsent input that is stored in this browser. Channels that notify the console's other tabs of changes.

const PREFIX = "agentic-rag.draft.";
const OWNER = "agentic-rag.drafts-of";

/** The name of the database of images that are not sent yet; see `chat/kept-images.js`. */
export const IMAGES = "agentic-rag.images";

let owner = "";
let ended = false;

const nameOf = (key) => `${PREFIX}${encodeURIComponent(owner)}/${key}`;

/** Return the draft of a key, such as `chat:conv_…`: `read()`, `write(value)` and `clear()`. A value is text or any
 * other JSON; writing "" or null deletes the draft. In a browser without storage, drafts are lost with the page, and
 * nothing else fails. */
export function draft(key) {
  const name = nameOf(key);
  return {
    read() {
      try {
        return JSON.parse(localStorage.getItem(name))?.value ?? null;
      } catch {
        return null;
      }
    },
    write(value) {
      if (ended) return;
      try {
        if (value === "" || value === null || value === undefined) localStorage.removeItem(name);
        else localStorage.setItem(name, JSON.stringify({ value, at: Date.now() }));
      } catch {
        forgetOldest(name, value);
      }
    },
    clear() {
      this.write(null);
    },
  };
}

/** Return the rest of each stored key that starts with a prefix, in any order. */
export function draftsUnder(prefix) {
  try {
    const start = nameOf(prefix);
    return Object.keys(localStorage)
      .filter((name) => name.startsWith(start))
      .map((name) => name.slice(start.length));
  } catch {
    return [];
  }
}

function forgetOldest(name, value) {
  try {
    const drafts = Object.keys(localStorage).filter((otherName) => otherName.startsWith(PREFIX) && otherName !== name);
    const at = (otherName) => JSON.parse(localStorage.getItem(otherName))?.at ?? 0;
    drafts
      .sort((first, second) => at(first) - at(second))
      .slice(0, 20)
      .forEach((draft) => localStorage.removeItem(draft));
    localStorage.setItem(name, JSON.stringify({ value, at: Date.now() }));
  } catch {
    // The storage is full, or the browser has none.
  }
}

/** Set the user whose drafts are read and written. Drafts of an earlier user of this browser are deleted. */
export function ownDrafts(name) {
  owner = name;
  forget((key) => !key.startsWith(nameOf("")));
  try {
    if (localStorage.getItem(OWNER) !== name) indexedDB.deleteDatabase(IMAGES);
    localStorage.setItem(OWNER, name);
  } catch {
    // The browser has no storage.
  }
}

/** Delete all drafts, and store none until the page is reloaded, because the next user of this browser may be another
 * person. */
export function endDrafts() {
  ended = true;
  forget(() => true);
  globalThis.indexedDB?.deleteDatabase(IMAGES);
}

function forget(fits) {
  try {
    for (const key of Object.keys(localStorage)) if (key.startsWith(PREFIX) && fits(key)) localStorage.removeItem(key);
  } catch {
    // The browser has no storage.
  }
}

/** Return a channel to the other tabs: `tell(what, details)` and `hear(what, call)`, which returns a function that
 * removes the listener. Messages come only from the console's own pages. A message reports that something changed,
 * never the new state. */
export function tabs(name) {
  const channel = "BroadcastChannel" in globalThis ? new BroadcastChannel(`agentic-rag.${name}`) : null;
  return {
    tell(what, details = {}) {
      channel?.postMessage({ what, details });
    },
    hear(what, call) {
      const listen = ({ data }) => data?.what === what && call(data.details ?? {});
      channel?.addEventListener("message", listen);
      return () => channel?.removeEventListener("message", listen);
    },
    close() {
      channel?.close();
    },
  };
}

/** Detect other tabs that edit the same item. `onOther()` is called when another tab edits it, too. Returns
 * `{saved(version), onSaved(call), end()}`. */
export function editing(key, onOther) {
  const channel = tabs(`editing.${key}`);
  const ownTab = crypto.randomUUID();
  channel.hear("here", ({ tab, answered }) => {
    if (tab === ownTab) return;
    if (!answered) channel.tell("here", { tab: ownTab, answered: true });
    onOther();
  });
  channel.tell("here", { tab: ownTab });
  return {
    saved: (version) => channel.tell("saved", { version }),
    onSaved: (call) => channel.hear("saved", call),
    end: () => channel.close(),
  };
}
