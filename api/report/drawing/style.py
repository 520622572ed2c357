"""The look of the report: light and dark, screen and paper, wide and narrow, without color too."""

from __future__ import annotations

CSS = """\
:root{color-scheme:light dark;--page:#fff;--ink:#1a1c1e;--soft:#555c63;--rule:#d5d9dd;
--faint:#eceff1;--idle:#e2e6e9;--shade:#6f7880a0;--ours:#0072b2;--other:#b3541e;--forward:#8cc5e8;--backward:#00588a;
--sync:#e69f00;--switch:#cc79a7;--fifth:#00785a;--on-dark:#fff}
@media (prefers-color-scheme:dark){:root{--page:#14171a;--ink:#e8eaec;--soft:#a9b1b8;--rule:#3a4046;
--faint:#22272b;--idle:#2d343a;--shade:#8b949ca0;--ours:#56b4e9;--other:#f0914f;--forward:#2e6f99;--backward:#8fd0f5;
--sync:#f0b93a;--switch:#e39cc4;--fifth:#26c297;--on-dark:#14171a}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
main,header,footer{max-width:912px;margin:0 auto;padding:0 16px}
h1{font-size:1.7rem;line-height:1.2;margin:1.5rem 0 .5rem}
h2{font-size:1.3rem;margin:0 0 .25rem;line-height:1.25}
h3{font-size:1rem;margin:0 0 .35rem}
section{border-top:1px solid var(--rule);padding:1.5rem 0}
p{margin:.35rem 0;overflow-wrap:anywhere}
li{overflow-wrap:anywhere}
ul{padding-left:1.25rem;margin:.35rem 0}
.lead,figcaption,small{color:var(--soft)}
figcaption{font-size:.85rem;overflow-wrap:anywhere}
figure{margin:1.25rem 0}
a{color:var(--ours)}
nav ul{list-style:none;padding:0;display:flex;flex-wrap:wrap;gap:.15rem 1rem}
.advice{border-left:5px solid var(--ours);background:var(--faint);
padding:.6rem .9rem;margin:1rem 0}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));
gap:.75rem;margin:1rem 0}
.facts div{border:1px solid var(--rule);border-radius:6px;padding:.5rem .75rem}
.facts dt{color:var(--soft);font-size:.85rem}
.facts dd{margin:0;font-size:1.35rem;font-weight:600;overflow-wrap:anywhere}
.facts dd small{display:block;font-size:.8rem;font-weight:400}
details{margin:.6rem 0}
summary{cursor:pointer;font-weight:600;padding:.3rem 0}
:focus-visible{outline:3px solid var(--ours);outline-offset:2px}
/* A table may be wider than the text; beyond the screen, a shadow shows that there is more. */
.scroll{overflow-x:auto;position:relative;left:50%;transform:translateX(-50%);width:max-content;
min-width:100%;max-width:max(100%,100vw - 56px);background:
linear-gradient(90deg,var(--page) 40%,transparent) 0 0/36px 100% no-repeat local,
linear-gradient(270deg,var(--page) 40%,transparent) 100% 0/36px 100% no-repeat local,
linear-gradient(90deg,var(--shade),transparent) 0 0/12px 100% no-repeat scroll,
linear-gradient(270deg,var(--shade),transparent) 100% 0/12px 100% no-repeat scroll}
table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums}
.unseen{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
th,td{padding:.25rem .6rem;text-align:right;border-bottom:1px solid var(--rule);vertical-align:top;
white-space:nowrap}
th.text,td.text{text-align:left;white-space:normal;min-width:7em;max-width:26em;overflow-wrap:break-word}
thead th{vertical-align:bottom;white-space:normal;border-bottom:2px solid var(--soft)}
tbody th{font-weight:600}tbody th.name{min-width:13em}
svg{display:block;width:100%;height:auto;overflow:visible}
svg text{font:12px system-ui,sans-serif;fill:var(--ink);paint-order:stroke;stroke:var(--page);
stroke-width:3px;stroke-linejoin:round}
svg text.soft{fill:var(--soft)}
svg text.strong{font-weight:700}
svg text.on-forward,svg text.on-backward{font-size:10px;stroke:none}
svg text.on-backward{fill:var(--on-dark)}
svg.narrow{display:none;max-width:520px}
.patterns{position:absolute;width:0;height:0}
.grid{stroke:var(--rule);stroke-width:1}
.axis{stroke:var(--soft);stroke-width:1}
.mark{stroke:var(--ink);stroke-width:2}
.dashed{stroke:var(--ink);stroke-width:1;stroke-dasharray:4 3}
.band{stroke:var(--page);stroke-width:3}
.leader{stroke:var(--soft);stroke-width:.75;fill:none;stroke-dasharray:1.5 2}
.ours{fill:var(--ours);stroke:var(--ours)}
.other{fill:url(#p-other);stroke:var(--other)}
.ours-line{fill:none;stroke:var(--ours);stroke-width:2}
.curve{fill:none;stroke:var(--ours);stroke-width:1.75}
.curve.k1{stroke:var(--other)}.curve.k2{stroke:var(--soft)}.curve.k3{stroke:var(--switch)}
.curve.k4{stroke:var(--fifth)}
.mark-of{fill:var(--ours);stroke:var(--page);stroke-width:1}
.mark-of.k1{fill:var(--other)}.mark-of.k2{fill:var(--soft)}.mark-of.k3{fill:var(--switch)}
.mark-of.k4{fill:var(--fifth)}
.box{fill:var(--faint);stroke:var(--soft)}
.dot{fill:var(--soft);stroke:none;opacity:.55}
.dot.mine{fill:var(--ours);opacity:.7}
.hollow{fill:var(--page);stroke:var(--ink);stroke-width:1.5}
.forward{fill:var(--forward)}
.backward{fill:var(--backward)}
.sync{fill:url(#p-sync)}
.optimizer{fill:url(#p-optimizer)}
.switch{fill:url(#p-switch)}
.compute{fill:var(--forward);stroke:var(--backward)}
.stage{fill:var(--idle)}
.b-sync{fill:var(--sync)}.b-optimizer{fill:var(--faint)}.b-switch{fill:var(--switch)}
.b-other{fill:var(--page)}
.l-sync,.l-optimizer,.l-switch,.l-other{stroke:var(--ink);stroke-width:1.2;fill:none}
.l-other{stroke:var(--other);stroke-width:2}
@media (max-width:700px){svg.wide{display:none}svg.narrow{display:block}
.facts{grid-template-columns:repeat(2,minmax(0,1fr))}
.facts div:last-child:nth-child(odd){grid-column:1/-1}
h1{font-size:1.4rem}tbody th.name{min-width:9em}}
@media print{:root{color-scheme:light;--page:#fff;--ink:#000;--soft:#444;--rule:#bbb;--faint:#eee;
--idle:#e2e6e9;--ours:#0072b2;--other:#b3541e;--forward:#8cc5e8;--backward:#00588a;--sync:#e69f00;
--switch:#cc79a7;--fifth:#00785a;--on-dark:#fff}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}
@page{margin:14mm}
body{font-size:11pt}nav{display:none}main,header,footer{max-width:none;padding:0}
svg.wide{display:block}svg.narrow{display:none}svg text{stroke:none}
.other{fill:#f3c9ab}.sync{fill:var(--sync);stroke:none}
.optimizer{fill:#fff;stroke:#000;stroke-width:.75}.switch{fill:#fff;stroke:var(--switch)}
figure,tr,.advice{break-inside:avoid}h2,h3,.lead,summary{break-after:avoid}
.scroll{overflow:visible;position:static;transform:none;width:auto;max-width:none;background:none}
table{font-size:7.5pt}th,td{padding:.12rem .3rem}
th.text,td.text,tbody th.name{min-width:5em}
details:not(.long)::details-content{content-visibility:visible;display:block;height:auto}
}
"""

PATTERNS = """\
<svg class="patterns" aria-hidden="true" focusable="false"><defs>\
<pattern id="p-other" width="6" height="6" patternUnits="userSpaceOnUse">\
<rect width="6" height="6" class="b-other"></rect>\
<path d="M-1 1l2-2M0 6l6-6M5 7l2-2" class="l-other"></path></pattern>\
<pattern id="p-sync" width="5" height="5" patternUnits="userSpaceOnUse">\
<rect width="5" height="5" class="b-sync"></rect>\
<path d="M0 2.5h5" class="l-sync"></path></pattern>\
<pattern id="p-optimizer" width="5" height="5" patternUnits="userSpaceOnUse">\
<rect width="5" height="5" class="b-optimizer"></rect>\
<path d="M0 2.5h5M2.5 0v5" class="l-optimizer"></path></pattern>\
<pattern id="p-switch" width="5" height="5" patternUnits="userSpaceOnUse">\
<rect width="5" height="5" class="b-switch"></rect>\
<path d="M2.5 0v5" class="l-switch"></path></pattern>\
</defs></svg>"""
"""Fills that differ without color, shared by all figures, as a hidden figure's cannot be used."""
