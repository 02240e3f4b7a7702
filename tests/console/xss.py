"""Texts that would execute in a page that treats them as HTML, a script, an address or a name.

They call `HIT`, and `LISTEN_FOR_HITS` records the calls. A page must show them as written or leave them out.
"""

from typing import Final

HIT: Final = "hit()"

CORPUS: Final = (
    f"<script>{HIT}</script>",
    f"<img src=x onerror={HIT}>",
    f"<svg onload={HIT}>",
    f"<svg><script>{HIT}</script></svg>",
    f"<iframe srcdoc='<script>parent.{HIT}</script>'></iframe>",
    f"<body onload={HIT}>",
    f"<details open ontoggle={HIT}>x</details>",
    f"<input autofocus onfocus={HIT}>",
    f"<a href='javascript:{HIT}'>click</a>",
    f"[click](javascript:{HIT})",
    f"[click](JaVaScRiPt&colon;{HIT})",
    f"[click](data:text/html,<script>{HIT}</script>)",
    f"![x](x' onerror='{HIT})",
    f'![x](https://example.invalid/x.png "x\\" onerror=\\"{HIT}")',
    f"<math><mtext><table><mglyph><style><img src=x onerror={HIT}></style></mglyph></table></mtext></math>",
    f"<form><math><mtext></form><form><mglyph><svg><mtext><style><path id='</style><img onerror={HIT} src>'>",
    f"<noscript><p title='</noscript><img src=x onerror={HIT}>'>",
    f"<template><script>{HIT}</script></template>",
    f"--><script>{HIT}</script><!--",
    f"]]><script>{HIT}</script>",
    f"'\"><script>{HIT}</script>",
    "<style>*{display:none}</style>",
    "<meta http-equiv=refresh content='0;url=https://example.invalid/'>",
    "<base href='https://example.invalid/'>",
    "<form id=main action=https://example.invalid/><button name=app>x</button></form>",
    "<img name=cookie><a id=toasts></a>",
    "{{constructor.constructor('hit()')()}}",
    "${hit()}",
    f"```\n</code></pre><script>{HIT}</script>\n```",
    f"| a |\n|---|\n| <img src=x onerror={HIT}> |",
    "\u202e<script>hit()</script>\u202c",
    f"<scr\x00ipt>{HIT}</scr\x00ipt>".replace("\x00", "\u200b"),
)

LISTEN_FOR_HITS: Final = """
window.hits = [];
window.hit = () => window.hits.push(new Error().stack);
for (const name of ["alert", "confirm", "prompt", "print"]) window[name] = () => window.hits.push(name);
"""
