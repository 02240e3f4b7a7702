// Runs before anything is painted: sets the chosen theme and language, and requests early what the page needs in a
// moment. A classic script, because a module would run after the first paint. It must stay small: the paint waits for it.
{
  const root = document.documentElement;
  const base = new URL(".", document.currentScript.src).href;
  const stored = (name) => {
    try {
      return localStorage.getItem(`agentic-rag.${name}`);
    } catch {
      return null; // the browser blocks storage
    }
  };
  const theme = stored("theme");
  if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  const known = ["en", "zh"];
  const wanted = [stored("language"), ...(navigator.languages ?? []).map((each) => each.toLowerCase().split("-")[0])];
  const language = wanted.find((each) => known.includes(each)) ?? "en";
  root.lang = language === "zh" ? "zh-CN" : language;
  const preload = (path, props) => document.head.append(Object.assign(document.createElement("link"), props, { href: base + path }));
  const isChat = /^(?:#?\/?$|#\/chat(?:\/|$))/.test(location.hash);
  for (const section of isChat ? ["shell", "chat"] : ["shell"]) preload(`lang/${language}/${section}.js`, { rel: "modulepreload" });
  if (isChat) preload("chat/chat.css", { rel: "preload", as: "style" });
  /** The answer of GET /api/auth; null if there was none. `session.js` uses it once. */
  globalThis.earlyPresence = fetch(new URL(base.replace(/\/web\/(?:[0-9a-f]{16}\/)?$/, "/api/auth")), { headers: { Accept: "application/json" }, credentials: "same-origin", redirect: "error" }).then((response) => (response.ok ? response.json() : null), () => null);
}
