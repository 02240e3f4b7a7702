// What was typed and not sent yet, kept in this browser; and word to the page's other tabs about what changed.

const PREFIX = "agentic-rag.draft.";
const OWNER = "agentic-rag.drafts-of";

/** The name of the database of images that are not sent yet; see `chat/kept-images.js`. */
export const IMAGES = "agentic-rag.images";

let owner = "";
let ended = false;

const nameOf = (key) => `${PREFIX}${encodeURIComponent(owner)}/${key}`;

/** Return the draft of a key, such as `chat:conv_…`: `read()`, `write(value)` (text, or anything JSON has; "" and null
 * forget it) and `clear()`. A browser that keeps nothing loses drafts with the page, nothing else. */
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

/** Return what follows a prefix in the keys under which something is kept, in no order. */
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
    // full, or none at all
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
    // a browser that keeps nothing
  }
}

/** Delete all drafts, and keep none until the page is reloaded: the next user of this browser may be another person. */
export function endDrafts() {
  ended = true;
  forget(() => true);
  globalThis.indexedDB?.deleteDatabase(IMAGES);
}

function forget(fits) {
  try {
    for (const key of Object.keys(localStorage)) if (key.startsWith(PREFIX) && fits(key)) localStorage.removeItem(key);
  } catch {
    // a browser that keeps nothing
  }
}

/** Return a channel to the other tabs: `tell(what, details)`, `hear(what, call)` (returns a function that ends it). What
 * is told comes from our own pages only, and says that something changed, never what it is now. */
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

/** Tell two tabs that edit the same thing of each other. `onOther()` is called when another tab edits it, too.
 * Returns `{saved(version), onSaved(call), end()}`. */
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
