// Keeps a page up to date while the server's state changes. `watch` polls it, and `keepFocus` draws it without taking
// the keyboard focus from the user.

const FOCUSABLE = "a[href], button, input, select, textarea, summary, [tabindex='0']";

/** Load data now and periodically while the page is visible, and draw it when it has changed. An error of the first
 * load is raised. A response that comes after a later request was sent is dropped, because it may be older than the
 * shown state. Returns a function that ends the watch. Its `now()` loads at once, for an action that has changed the
 * state.
 *
 * - `load()`: resolves to JSON
 * - `draw(state)`: shows it
 * - `onerror(error)`: called with the error of a later load, and with null after each load that succeeded */
export async function watch(load, draw, { seconds = 5, onerror = () => {} } = {}) {
  let shown = null;
  let timer = 0;
  let ended = false;
  let requests = 0;
  const look = async (isFirst) => {
    clearTimeout(timer);
    const request = (requests += 1);
    const isOld = () => ended || request !== requests; // the later request schedules the next one
    try {
      const state = await load();
      if (isOld()) return;
      const text = JSON.stringify(state);
      if (text !== shown) draw(state);
      shown = text;
      onerror(null);
    } catch (error) {
      if (isFirst) throw error;
      if (isOld()) return;
      if (!error?.code) console.error(error);
      onerror(error);
    }
    timer = setTimeout(lookIfVisible, seconds * 1000);
  };
  const lookIfVisible = () => (document.hidden ? (timer = setTimeout(lookIfVisible, seconds * 1000)) : look(false));
  const lookWhenShown = () => !document.hidden && look(false);
  await look(true);
  document.addEventListener("visibilitychange", lookWhenShown);
  const end = () => {
    ended = true;
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", lookWhenShown);
  };
  end.now = () => look(false);
  return end;
}

/** Draw an element's content again, and keep the focus on the control with the same name. If several controls have the
 * name, the nearest one gets the focus: a new row above must not move it to the same button of another row. If no
 * control has the name, the one at the same position gets the focus. */
export function keepFocus(element, draw) {
  const controls = () => [...element.querySelectorAll(FOCUSABLE)];
  const at = controls().indexOf(document.activeElement);
  const name = at >= 0 && nameOf(document.activeElement);
  draw();
  if (at < 0) return;
  const drawn = controls();
  const distance = (control) => Math.abs(drawn.indexOf(control) - at);
  const [same] = drawn.filter((control) => nameOf(control) === name).sort((a, b) => distance(a) - distance(b));
  (same ?? drawn[at])?.focus({ preventScroll: true });
}

const nameOf = (control) => control.getAttribute("aria-label") ?? control.textContent;
