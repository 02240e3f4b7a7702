// Sets the chosen theme before anything is painted. A classic script, so that it runs before the page is shown.
{
  let theme = null;
  try {
    theme = localStorage.getItem("agentic-rag.theme");
  } catch {
    // a browser that keeps nothing
  }
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
}
