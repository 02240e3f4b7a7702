// Exports a conversation as a file with its sources, or shares it as a read-only link if the operator allows that.

import { api } from "../api.js";
import { below, h, replace, ROOT } from "../dom.js";
import { formatDate, language, t } from "../i18n.js";
import { button, copyButton, input, openDialog, saveFile, toast } from "../ui.js";

const FORMATS = [
  ["markdown", "md", "text/markdown"],
  ["html", "html", "text/html"],
  ["json", "json", "application/json"],
];

/** Open the dialog for sharing a conversation, `{id, title}`. */
export function openSharing(record) {
  const path = `/api/conversations/${encodeURIComponent(record.id)}`;
  const link = h("div", { class: "stack-small" });
  openDialog(t("chat.shareOrExport"), {
    build: () => [
      h(
        "section",
        { class: "stack-small" },
        h("h3", {}, t("chat.export")),
        h("p", { class: "faint small" }, t("chat.exportHint")),
        h(
          "div",
          { class: "row" },
          FORMATS.map((format) => exportButton(path, record, format)),
        ),
      ),
      link,
    ],
  });
  loadLink(path, link);
}

function exportButton(path, record, [format, ending, type]) {
  const save = async () => {
    const answer = await fetch(below(`${path}/export?${new URLSearchParams({ format, language })}`), {
      headers: { "X-Requested-With": "console" },
    });
    if (!answer.ok)
      throw Object.assign(new Error((await answer.json()).error?.message ?? String(answer.status)), {
        code: "EXPORT_FAILED",
      });
    saveFile(`${fileName(record.title)}.${ending}`, type, await answer.text());
  };
  return button(t(`chat.export.${format}`), { icon: "download", onclick: save });
}

/** Return a title as a file name. */
function fileName(title) {
  return (
    (title || t("chat.untitled"))
      .replace(/[\s\\/:*?"<>|\u0000-\u001f]+/g, " ")
      .trim()
      .slice(0, 80) || "conversation"
  );
}

async function loadLink(path, place) {
  const { readers, createdAt } = await api("GET", `${path}/share`).catch(() => ({ readers: "off" }));
  if (readers === "off")
    return void replace(place, h("h3", {}, t("chat.share")), h("p", { class: "faint small" }, t("chat.shareOff")));
  draw(null, createdAt);

  function draw(address, since) {
    const make = async () => {
      const share = await api("POST", `${path}/share`);
      draw(new URL(`${ROOT}${share.path}?${new URLSearchParams({ language })}`, location.href).href, share.createdAt);
    };
    const revoke = async () => {
      await api("DELETE", `${path}/share`);
      draw(null, null);
      toast(t("chat.shareRevoked"));
    };
    const shown =
      address &&
      h(
        "div",
        { class: "row" },
        input({
          value: address,
          readonly: true,
          "aria-label": t("chat.shareLink"),
          class: "input grow",
          onfocus: (event) => event.target.select(),
        }),
        copyButton(t("chat.copy"), () => address),
      );
    replace(
      place,
      h("h3", {}, t("chat.share")),
      h("p", { class: "faint small" }, t(`chat.shareHint.${readers}`)),
      since && h("p", { class: "small" }, t("chat.sharedSince", { when: formatDate(since) })),
      shown,
      h(
        "div",
        { class: "row" },
        !address && button(t(since ? "chat.shareAgain" : "chat.shareMake"), { icon: "link", onclick: make }),
        since && button(t("chat.shareRevoke"), { kind: "quiet", onclick: revoke }),
      ),
    );
  }
}
