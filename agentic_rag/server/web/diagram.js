// Runs inside the sandboxed frame of a diagram. It gets Mermaid source from the page that made the frame, draws it and
// reports the size. The frame has no origin, no storage and no network: it can only draw.

const PALETTES = {
  light: { ground: "#ffffff", node: "#f0f0ee", line: "#85868a", ink: "#1b1b1d", soft: "#4d4e53", accent: "#efeffb" },
  dark: { ground: "#17181a", node: "#2a2b2f", line: "#75777d", ink: "#ececec", soft: "#b9babf", accent: "#27274a" },
};
const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "PingFang SC", "Microsoft YaHei", sans-serif';

function setUp(dark) {
  const { ground, node, line, ink, soft, accent } = PALETTES[dark ? "dark" : "light"];
  document.documentElement.style.colorScheme = dark ? "dark" : "light";
  document.body.style.cssText = `margin: 0; overflow: hidden; background: ${ground}`;
  globalThis.mermaid.initialize({
    startOnLoad: false,
    securityLevel: "strict",
    htmlLabels: false,
    flowchart: { htmlLabels: false, useMaxWidth: true },
    maxTextSize: 10_000,
    maxEdges: 300,
    suppressErrorRendering: true,
    fontFamily: FONT,
    theme: "base",
    themeCSS:
      ".node rect, .cluster rect, rect.actor { rx: 6px; ry: 6px } .edgePaths path, .messageLine0, .messageLine1 { stroke-width: 1.5px }",
    themeVariables: {
      darkMode: dark,
      background: ground,
      fontFamily: FONT,
      fontSize: "14px",
      primaryColor: node,
      primaryBorderColor: node,
      primaryTextColor: ink,
      secondaryColor: accent,
      secondaryBorderColor: accent,
      secondaryTextColor: ink,
      tertiaryColor: ground,
      tertiaryBorderColor: line,
      tertiaryTextColor: ink,
      lineColor: line,
      textColor: ink,
      edgeLabelBackground: ground,
      noteBkgColor: accent,
      noteTextColor: ink,
      noteBorderColor: accent,
      clusterBkg: ground,
      clusterBorder: line,
      titleColor: soft,
    },
  });
}

addEventListener("message", async ({ source, data }) => {
  if (source !== parent || typeof data?.code !== "string") return;
  try {
    setUp(data.dark === true);
    const { svg } = await globalThis.mermaid.render("diagram", data.code);
    document.body.innerHTML = svg;
    const drawn = document.querySelector("svg");
    drawn.style.display = "block";
    drawn.style.maxHeight = "640px";
    const { width, height } = drawn.viewBox.baseVal;
    parent.postMessage({ width, height }, "*");
  } catch (error) {
    parent.postMessage({ error: String(error?.message ?? error).slice(0, 500) }, "*");
  }
});
parent.postMessage({ ready: true }, "*");
