"""What stands round the pictures of `picture.py`: the legend, the style, the page."""

LEGEND = """<section class=legend aria-label="How to read this page">
<div>
<h3>The cut</h3>
<p>Each group runs to the next place where both tokenizers cut.
<span class="chip student">Above</span> the student's tokens,
<span class="chip teacher">below</span> the teacher's, the text between them.
A figure such as <small>3:1</small> says that three student tokens stand over one teacher token.</p>
<ul>
<li><span class="chip student unmapped">&lt;s&gt;</span> dashed, with <span class=nothing>∅</span>
opposite: unmapped, it shares no text with the other side.</li>
<li><span class="chip student unscored">The</span> dotted: mapped, but the teacher has no loss
there.</li>
<li><span class="chip student">C2</span> two hexadecimal digits: one byte of a character.</li>
</ul>
</div>
<div>
<h3>The choice</h3>
<p>A token's excess loss is the student's loss minus the teacher's: how much the student still has
to learn there, and can. The largest ones are kept for training, the rest is only read.</p>
<ul>
<li><mark class="kept level1">kept</mark> <mark class="kept level2">from 0.5</mark>
<mark class="kept level3">1</mark> <mark class="kept level4">2</mark>
<mark class="kept level5">4 nats</mark> underlined; the deeper, the larger the
excess.</li>
<li><span class=dropped>pale, not underlined</span>: dropped.</li>
<li><mark class="kept unmapped">&lt;s&gt;</mark> dashed: unmapped, so nothing to compare it
with.</li>
</ul>
<p>␣ is a space, ⏎ a line break. Point at a token for its id, bytes and losses.</p>
</div>
</section>"""

STYLE = """
:root{color-scheme:light dark;--page:#fbfaf7;--card:#fff;--ink:#1d2329;--soft:#5c6670;
--faint:#6b747d;--line:#dfdcd3;
--student:#0a5fa8;--student-bg:#e6f0fa;--teacher:#8f4700;--teacher-bg:#fbeedd;
--heat:0,122,94;--heat-ink:#06251d;--gap:.36ch;--col:1.36ch}
@media (prefers-color-scheme:dark){:root{--page:#14171a;--card:#1c2024;--ink:#e8e6e1;--soft:#a9b1b9;
--faint:#8a939c;--line:#343a40;--student:#86c1f7;--student-bg:#17304a;--teacher:#f3b573;
--teacher-bg:#432c13;--heat:38,190,150;--heat-ink:#f2fffa}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.55 system-ui,sans-serif}
main{max-width:1120px;margin:0 auto;padding:clamp(20px,4vw,48px) clamp(14px,3vw,32px) 64px}
h1{font-size:clamp(1.55rem,3.5vw,2.15rem);line-height:1.2;letter-spacing:-.015em;margin:0}
h2{font-size:1.2rem;margin:0}
h3{font-size:.82rem;letter-spacing:.03em;color:var(--soft);margin:1.5em 0 .5em}
p{margin:.3em 0 .7em}
.lead{color:var(--soft);max-width:68ch;margin:.6em 0 0}
.scroll{overflow-x:auto;margin-top:28px}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:.5em 0 .5em 1.4em;text-align:right;border-bottom:1px solid var(--line);
white-space:nowrap}
th:first-child{text-align:left;padding-left:0}
thead th{font-weight:500;font-size:.86rem;color:var(--soft);vertical-align:bottom;
white-space:normal}
tbody th{font-weight:600}
section{background:var(--card);border:1px solid var(--line);border-radius:10px;margin-top:28px;
padding:clamp(16px,2.6vw,28px)}
.legend{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,330px),1fr));
gap:4px 44px;background:none;border:0;padding:0;font-size:.92rem;color:var(--soft)}
.legend ul{list-style:none;margin:.4em 0;padding:0}
.legend li{margin:.4em 0}
.legend .chip{display:inline-block;padding:0 .35em;line-height:1.35;letter-spacing:.04em}
.counts{color:var(--faint);font-size:.86rem;margin:.2em 0 0;font-variant-numeric:tabular-nums}
.alignment,.choice,.chip,.nothing,.legend mark,.legend .dropped{
font-family:ui-monospace,"DejaVu Sans Mono",Menlo,Consolas,monospace}
.alignment{font-size:15px;line-height:1.5;margin-top:10px}
.group{display:inline-grid;grid-template-columns:repeat(var(--n),var(--col));position:relative;
vertical-align:top;margin:0 3px 20px 0;max-width:100%;overflow:visible}
.chip,.group b{letter-spacing:var(--gap);padding-left:calc(var(--gap)/2);white-space:pre}
.chip{margin:0 1px;line-height:1.5}
.chip.student{background:var(--student-bg);color:var(--student);border-radius:4px 4px 0 0;
border-top:2px solid}
.chip.teacher{background:var(--teacher-bg);color:var(--teacher);border-radius:0 0 4px 4px;
border-bottom:2px solid}
.chip bdo{margin:0 -1px}
.chip.student.unmapped,.chip.teacher.unmapped{border:1px dashed;border-radius:4px;background:none}
.chip.unmapped bdo{margin:0 -2px}
.chip.student.unscored{border-top:3px dotted}
.chip .wide,.group b.wide{letter-spacing:0}
.chip .wide{display:inline-block;width:calc(2*var(--col));text-align:center}
.group b{font-weight:400;color:var(--ink);margin:0}
.group b.wide{text-align:center;padding:0}
.nothing{color:var(--faint);text-align:center}
.group small,.legend small{font:600 11px/1.4 system-ui,sans-serif;color:var(--soft)}
.group small{position:absolute;left:0;right:0;top:100%}
.uneven::after{content:"";position:absolute;left:2px;right:2px;top:100%;height:4px;margin-top:-2px;
border:solid var(--faint);border-width:0 1px 1px}
.uneven small{padding-top:3px}
.choice{font-size:15px;line-height:1.95;overflow-wrap:anywhere;margin:0}
mark{color:inherit;background:none}
.kept{border-radius:3px 3px 0 0;border-bottom:2px solid rgb(var(--heat));color:var(--ink);
padding:1px 0;margin-right:1px;background:rgba(var(--heat),var(--shade,.07))}
.level1{--shade:.10}.level2{--shade:.22}.level3{--shade:.36}.level4{--shade:.52}.level5{--shade:.70}
.level4,.level5{color:var(--heat-ink)}
.kept.unmapped{background:none;border:1px dashed var(--soft);
border-bottom:2px solid rgb(var(--heat))}
.dropped{color:var(--faint)}
.dropped.unmapped{border:1px dashed var(--faint)}
.choice i{font-style:normal;opacity:.45}
bdo{unicode-bidi:isolate-override}
"""

PAGE = """<!DOCTYPE html>
<html lang=en><head><meta charset=utf-8>
<meta name=viewport content="width=device-width,initial-scale=1">
<title>{title}</title><style>{style}</style></head>
<body><main>
{body}
</main></body></html>
"""
