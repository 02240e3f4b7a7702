// Starts early the requests that the page needs next. This is a classic script, because modules run later. Nothing here
// uses cookies, storage or the network before the first frame: in a fresh browser, each of these delays that frame by
// 60 to 100 ms. The server writes the chosen theme and language into the page.
{
  const root = document.documentElement;
  const base = new URL(".", document.currentScript.src).href;
  const language = root.lang.split("-")[0];
  const words = (section) => `lang/${language}/${section}`;
  const modules = ["dom", "i18n", "api", "ui", "icons", "errors/text", "session", "drafts", words("shell")];
  const ofChat = ["chat/page", "stream", "chat/composer", "chat/list", words("chat")];
  const isChat = /^(?:#?\/?$|#\/chat(?:\/|$))/.test(location.hash);
  const preload = (path, props) =>
    document.head.append(Object.assign(document.createElement("link"), props, { href: base + path }));
  let begun = false;
  const begin = () => {
    if (begun) return;
    begun = true;
    import(`${base}app.js`);
    for (const module of isChat ? [...modules, ...ofChat] : modules) preload(`${module}.js`, { rel: "modulepreload" });
    if (isChat) preload("chat/chat.css", { rel: "preload", as: "style" });
    /** The response of GET /api/auth, or null if there was none. `session.js` uses it once. */
    globalThis.earlyPresence = fetch(base.replace(/\/web\/(?:[0-9a-f]{16}\/)?$/, "/api/auth"), {
      headers: { Accept: "application/json" },
      credentials: "same-origin",
      redirect: "error",
    }).then(
      (response) => (response.ok ? response.json() : null),
      () => null,
    );
  };
  // Wait for the first paint, because loading the modules would delay it. A hidden page is not painted.
  if (document.hidden) begin();
  else {
    new PerformanceObserver((list) => list.getEntriesByName("first-contentful-paint").length && begin()).observe({
      type: "paint",
      buffered: true,
    });
    setTimeout(begin, 300);
  }
}
