"""How a picture looks and moves in a browser: style sheet and script, which need nothing else."""

from __future__ import annotations

#: Fill and line of rows by operator class, by day and by night.
CLASSES = {
    "contraction": ("#dbe7fb", "#2f5ea8", "#1f3557", "#9cc2ff"),
    "elementwise": ("#ddf2dc", "#2f7a33", "#1e3f24", "#8fd694"),
    "window": ("#ffe9cc", "#a85f06", "#4a3316", "#ffc272"),
    "movement": ("#ececec", "#5f6368", "#33373d", "#c0c4ca"),
    "reduction": ("#ecdff7", "#6f3f9c", "#382850", "#cfa8f2"),
    "other": ("#f9dfe3", "#a12c40", "#4a2028", "#ff9db0"),
}
#: From the shortest to the longest time.
HEAT = ("#fffbe6", "#fff0b3", "#ffdf80", "#ffc65c", "#ffa552", "#fb7f4f", "#ee5a4f")
HEAT_DARK = ("#2b2a22", "#3d3617", "#574412", "#75500f", "#95560f", "#b5541a", "#cf4a2a")

_DAY = {"page": "#ffffff", "text": "#20242b", "faint": "#5c6470", "edge": "#8a8f98"}
_NIGHT = {"page": "#16181d", "text": "#e8eaed", "faint": "#a3aab5", "edge": "#7f8794"}
_DAY |= {"box": "#ffffff", "frame": "#5a5a8c", "mark": "#e0115f", "group": "#f7f7fb"}
_NIGHT |= {"box": "#22262e", "frame": "#a9a9dc", "mark": "#ff5c97", "group": "#1c1f27"}


def _rules(night: bool) -> str:
    of = _NIGHT if night else _DAY
    heat = HEAT_DARK if night else HEAT
    rules = [
        f".page{{fill:{of['page']}}} .t{{fill:{of['text']}}} .f{{fill:{of['faint']}}}",
        f".e{{fill:none;stroke:{of['edge']};stroke-width:1.3}} .a{{fill:{of['edge']}}}",
        f".b{{fill:{of['box']};stroke:{of['edge']};stroke-width:1.2}}",
        f".p{{fill:{of['page']};stroke:{of['text']};stroke-width:1.2}}",
        f".g{{fill:{of['group']};stroke:{of['frame']};stroke-width:1.6;stroke-dasharray:6 3}}",
        f".r{{fill:{of['group']};stroke:{of['edge']};stroke-width:1.6}}",
        f".k{{fill:none;stroke:{of['frame']};stroke-width:2.5}} .kt{{fill:{of['frame']}}}",
        f".m{{fill:none;stroke:{of['mark']};stroke-width:2.5}}",
    ]
    for name, colours in CLASSES.items():
        fill, line = colours[2:] if night else colours[:2]
        rules.append(f".{name}{{fill:{fill}}} .{name}-t{{fill:{line}}}")
    rules += [f".h{i}{{fill:{colour}}}" for i, colour in enumerate(heat)]
    return "\n".join(rules)


STYLE = f"""<style>
text{{font:11px Helvetica,Arial,'DejaVu Sans',sans-serif}} .w{{font-weight:bold}}
.c{{text-anchor:middle}} .s{{font-size:10px}} .l{{font-size:16px}} .end{{text-anchor:end}}
{_rules(False)}
@media (prefers-color-scheme: dark) {{
{_rules(True)}
}}
</style>"""

#: Wheel and pinch zoom at the pointer, dragging moves, a double click or 0 shows all again.  In a
#: page that shows the file as an image no script runs, and the picture has its own size.
SCRIPT = """<script><![CDATA[
(function () {
  var svg = document.documentElement;
  if (svg.localName !== "svg") return;
  var all = svg.getAttribute("viewBox").split(" ").map(Number), v = all.slice(), from = null;
  svg.setAttribute("width", "100%"); svg.setAttribute("height", "100%");
  svg.style.position = "fixed"; svg.style.cursor = "grab"; svg.style.touchAction = "none";
  function show() { svg.setAttribute("viewBox", v.join(" ")); }
  function at(x, y) {
    return new DOMPoint(x, y).matrixTransform(svg.getScreenCTM().inverse());
  }
  function zoom(f, x, y) {
    var p = at(x, y), w = Math.min(all[2] * 4, Math.max(60, v[2] * f));
    f = w / v[2];
    v = [p.x - (p.x - v[0]) * f, p.y - (p.y - v[1]) * f, w, v[3] * f];
    show();
  }
  svg.addEventListener("wheel", function (e) {
    e.preventDefault();
    zoom(Math.exp(Math.max(-60, Math.min(60, e.deltaY)) / 250), e.clientX, e.clientY);
  }, { passive: false });
  svg.addEventListener("pointerdown", function (e) {
    if (e.button) return;
    from = at(e.clientX, e.clientY); svg.style.cursor = "grabbing";
    svg.setPointerCapture(e.pointerId);
  });
  svg.addEventListener("pointermove", function (e) {
    if (!from) return;
    var p = at(e.clientX, e.clientY);
    v[0] += from.x - p.x; v[1] += from.y - p.y; show();
  });
  svg.addEventListener("pointerup", function () { from = null; svg.style.cursor = "grab"; });
  svg.addEventListener("dblclick", function () { v = all.slice(); show(); });
  window.addEventListener("keydown", function (e) {
    var x = innerWidth / 2, y = innerHeight / 2, step = v[2] / 10;
    if (e.key === "+" || e.key === "=") zoom(0.8, x, y);
    else if (e.key === "-") zoom(1.25, x, y);
    else if (e.key === "0") { v = all.slice(); show(); }
    else if (e.key === "ArrowLeft") { v[0] -= step; show(); }
    else if (e.key === "ArrowRight") { v[0] += step; show(); }
    else if (e.key === "ArrowUp") { v[1] -= step; show(); }
    else if (e.key === "ArrowDown") { v[1] += step; show(); }
    else return;
    e.preventDefault();
  });
})();
]]></script>"""
