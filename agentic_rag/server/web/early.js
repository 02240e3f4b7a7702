// Runs before the first paint: sets the chosen theme and language, and requests early what the page needs in a moment.
// A classic script, because modules run later. The paint waits for it, so the choices are cookies: the first use of
// localStorage in a browser takes about 100 ms.
{
  const root = document.documentElement;
  const base = new URL(".", document.currentScript.src).href;
  const chosen = (name) => new RegExp(`(?:^|; )agentic-rag\\.${name}=(\\w+)`).exec(document.cookie)?.[1] ?? "";
  const theme = chosen("theme");
  if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  const languages = [chosen("language"), ...(navigator.languages ?? []).map((each) => each.toLowerCase().split("-")[0])];
  const language = languages.find((each) => each === "en" || each === "zh") ?? "en";
  root.lang = language === "zh" ? "zh-CN" : language;
  const words = (section) => `lang/${language}/${section}`;
  const modules = ["dom", "i18n", "api", "ui", "icons", "errors/text", "session", "drafts", words("shell")];
  const ofChat = ["chat/page", "stream", "chat/composer", "chat/list", words("chat")];
  const isChat = /^(?:#?\/?$|#\/chat(?:\/|$))/.test(location.hash);
  const preload = (path, props) => document.head.append(Object.assign(document.createElement("link"), props, { href: base + path }));
  const begin = () => {
    import(`${base}app.js`);
    for (const each of isChat ? [...modules, ...ofChat] : modules) preload(`${each}.js`, { rel: "modulepreload" });
    if (isChat) preload("chat/chat.css", { rel: "preload", as: "style" });
  };
  // After the first frame, because the page's modules would delay it. A hidden page gets no frames.
  if (document.hidden) begin();
  else requestAnimationFrame(() => setTimeout(begin));
  /** The answer of GET /api/auth; null if there was none. `session.js` uses it once. */
  globalThis.earlyPresence = fetch(base.replace(/\/web\/(?:[0-9a-f]{16}\/)?$/, "/api/auth"), { headers: { Accept: "application/json" }, credentials: "same-origin", redirect: "error" }).then((response) => (response.ok ? response.json() : null), () => null);
}
