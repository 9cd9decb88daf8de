#include "report/page/style.h"

namespace ingot::report {

// Colours are variables, so that dark pages change them in one place: --c0 … runs, --heat of heat maps.
const std::string_view kStyleSheet = R"css(
:root{color-scheme:light dark;--paper:#fff;--panel:#fafaf8;--ink:#1d1f23;--soft:#62666d;--hair:#e3e3df;--grid:#ecece8;--far:#b3261e;--heat:#08519c;
--c0:#0067a5;--c1:#d0540a;--c2:#008a63;--c3:#b8568f;--c4:#3a9bd9;--c5:#b98600;--c6:#5b5b66;--c7:#7a4fb0}
@media(prefers-color-scheme:dark){:root{--paper:#15171a;--panel:#1b1e22;--ink:#e6e6e3;--soft:#9a9ea6;--hair:#2e3238;--grid:#262a2f;--far:#ff8a7a;--heat:#7cc0ff;
--c0:#5aaee6;--c1:#f0904f;--c2:#35bf97;--c3:#e192c2;--c4:#9ad2f7;--c5:#e6bb4a;--c6:#b4b6bf;--c7:#b796e8}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","DejaVu Sans",sans-serif;font-variant-numeric:tabular-nums}
main{max-width:1400px;margin:0 auto;padding:28px 24px 48px}
h1{font-size:24px;font-weight:650;letter-spacing:-.01em;margin:0}
h2{font-size:15px;font-weight:650;margin:0 0 6px}
main>h2{font-size:18px;margin:40px 0 12px;padding-top:14px;border-top:1px solid var(--hair)}
h3{font-size:14px;font-weight:650;margin:0}
.when{color:var(--soft);margin:2px 0 16px}
.verdict{max-width:88ch;margin:6px 0}
.verdict .run{font-weight:650;margin-right:.3em}
.dot{display:inline-block;width:.7em;height:.7em;border-radius:50%;background:currentColor;margin-right:.45em}
.dot.c0{color:var(--c0)}.dot.c1{color:var(--c1)}.dot.c2{color:var(--c2)}.dot.c3{color:var(--c3)}.dot.c4{color:var(--c4)}.dot.c5{color:var(--c5)}.dot.c6{color:var(--c6)}.dot.c7{color:var(--c7)}
.runs{position:sticky;top:0;z-index:2;background:var(--paper);border-bottom:1px solid var(--hair);margin:18px 0 0;padding:8px 0;display:flex;flex-wrap:wrap;gap:4px 18px;font-size:14px;max-height:30vh;overflow:auto}
.runs .chip{background:none;border:0;padding:0;font:inherit;color:inherit}
.runs .chip.can{cursor:pointer}
.runs .chip.off{opacity:.35;text-decoration:line-through}
.cards{columns:var(--card);column-gap:16px;margin:20px 0 0}
.card{background:var(--panel);border:1px solid var(--hair);border-radius:8px;padding:12px 14px 10px;margin:0 0 16px;break-inside:avoid}
.cards+h3{margin-top:14px}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:14px}
th{font-weight:400;text-align:left;color:var(--soft);padding:3px 8px 3px 0;vertical-align:baseline}
td,thead th{text-align:right;padding:3px 0 3px 8px;vertical-align:baseline}
thead th{white-space:nowrap;color:var(--ink)}
.card table{font-size:13.5px}.card td,.card tbody th{white-space:nowrap}.card tbody th{position:sticky;left:0;background:var(--panel)}
.card td:only-of-type{white-space:normal}
tbody tr+tr>*{border-top:1px solid var(--hair)}
.pairs,.differ{width:auto}.differ td,.differ thead th{padding-left:28px}.pairs td,.pairs thead th{text-align:left;padding-left:8px}.pairs td{overflow-wrap:anywhere}.pairs th,.pairs td,li,pre{font-size:13px}
.pairs th,pre{font-family:ui-monospace,"SF Mono","DejaVu Sans Mono",monospace;font-size:12.5px}
pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:4px 0;color:var(--soft)}
ul{margin:4px 0 16px;padding-left:20px}li{overflow-wrap:anywhere}
details{margin:8px 0}summary{cursor:pointer}
.far{color:var(--far);font-weight:600}
.dot.square{border-radius:0}
.ratios td{white-space:nowrap;padding-left:14px}.ratios thead th{padding-left:14px}.losses tbody th{min-width:170px}
.group{font-size:16px;margin:30px 0 0}.group+.key{margin-top:2px}.best{font-weight:650;background:var(--grid)}
.plots{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,400px),1fr));gap:24px 32px;margin-top:16px}
.runs+h2{border-top:0;margin-top:14px;padding-top:0}.wrap thead th{white-space:normal}.wrap td,.wrap thead th{padding-right:5px}
.pairwise{grid-template-columns:repeat(auto-fill,minmax(min(100%,480px),1fr))}
.level{align-items:end}
figure{margin:0;min-width:0}
figure.tall,figure.wide{grid-column:1/-1}
figcaption{display:flex;flex-wrap:wrap;align-items:baseline;gap:0 12px}
.key{color:var(--soft);font-size:12.5px;margin:14px 0 0}
figcaption p{margin:0;color:var(--soft);font-size:12.5px}
.plot{position:relative;height:190px;margin:22px 14px 40px 56px}
.tall .plot{height:330px}
.heat{height:170px}
.plot>svg{display:block;overflow:visible}
.unit,.xlabel{position:absolute;font-size:11.5px;color:var(--soft);white-space:nowrap}
.unit{left:-48px;bottom:calc(100% + 5px)}
.xlabel{right:0;top:calc(100% + 20px)}
svg text{font-size:11.5px;fill:var(--soft)}
text.y{text-anchor:end}text.x{text-anchor:middle}
.grid{stroke:var(--grid);stroke-width:1}.base{stroke:var(--soft);stroke-width:1}
path{fill:none;stroke-linejoin:round;stroke-linecap:round;vector-effect:non-scaling-stroke}
.d .c0,.b .c0,.mark.c0{color:var(--c0)}.d .c1,.b .c1,.mark.c1{color:var(--c1)}.d .c2,.b .c2,.mark.c2{color:var(--c2)}.d .c3,.b .c3,.mark.c3{color:var(--c3)}.d .c4,.b .c4,.mark.c4{color:var(--c4)}.d .c5,.b .c5,.mark.c5{color:var(--c5)}.d .c6,.b .c6,.mark.c6{color:var(--c6)}.d .c7,.b .c7,.mark.c7{color:var(--c7)}
.d path{stroke:currentColor}
.line{stroke-width:1.75}.faint{stroke-width:1;opacity:.28}.dashed{stroke-width:1.5;stroke-dasharray:5 5}.dots{stroke-width:7}.specks{stroke-width:4.5;opacity:.75}.holes{stroke-width:3.5}.d .holes{stroke:var(--paper)}path.square{stroke-linecap:square}
.mark line{stroke:currentColor;stroke-width:1;stroke-dasharray:2 3;opacity:.8}.mark path{fill:currentColor}
.b path{fill:currentColor;stroke:none}.b .other{color:var(--soft);opacity:.35}.b .failed{fill:var(--far);fill-opacity:.16}
.b .tick{stroke:var(--ink);stroke-width:2.5;stroke-linecap:butt}
.cross path{stroke:var(--far);stroke-width:2}
.hit{fill:transparent}.hit:hover{fill:var(--ink);fill-opacity:.07}
.keys{display:flex;flex-wrap:wrap;gap:0 12px}.keys>span{white-space:nowrap}.keys .dot{border-radius:2px}.dot.other{color:var(--soft);opacity:.35}.dot.failed{color:var(--far)}.dot.tick{height:2.5px;border-radius:0;vertical-align:.25em;color:var(--ink)}
.rule{stroke:var(--soft);stroke-width:1;visibility:hidden}
.h rect,.h path,.scale rect{fill:var(--heat);stroke:none}
.l0{fill-opacity:.04}.l1{fill-opacity:.13}.l2{fill-opacity:.23}.l3{fill-opacity:.33}.l4{fill-opacity:.44}.l5{fill-opacity:.55}.l6{fill-opacity:.66}.l7{fill-opacity:.77}.l8{fill-opacity:.88}.l9{fill-opacity:1}
.scale{white-space:nowrap;margin-left:.5em}.scale svg{vertical-align:-1px;border:1px solid var(--hair)}
.frame{fill:none;stroke:var(--hair)}
.tip{position:fixed;z-index:3;pointer-events:none;background:var(--paper);border:1px solid var(--hair);border-radius:6px;padding:6px 10px;font-size:12.5px;box-shadow:0 2px 10px #0003;max-width:320px}
.tip div{display:flex;gap:14px;justify-content:space-between}.tip b{font-weight:600}
.notes{color:var(--soft);font-size:13px;max-width:100ch}
@media(max-width:600px){main{padding:18px 14px 36px}.plot{margin-left:48px}.unit{left:-44px}.tall .plot{height:250px}.card{padding:10px 12px 8px}}
@media print{.runs{position:static}figure,.card{break-inside:avoid}}
)css";

// The values under the pointer are read back from the paths: a path's points lie in the plot's 10,000 units.
const std::string_view kScript = R"js(
(()=>{
const make=(name,text)=>{const e=document.createElement(name);if(text!==undefined)e.textContent=text;return e};
const tip=document.body.appendChild(make('div'));tip.className='tip';tip.hidden=true;
const show=v=>{const a=Math.abs(v);return a&&(a<1e-3||a>=1e15)?v.toExponential(2):a>=1e4?Math.round(v).toLocaleString('en'):String(+v.toPrecision(4))};
const row=(name,value,colour)=>{const r=make('div'),n=make('span');if(colour){const k=make('span');k.className='dot '+colour;n.append(k)}n.append(name);r.append(n,make('b',value));return r};
const place=(event,rows)=>{tip.replaceChildren(...rows);tip.hidden=false;
 const w=tip.offsetWidth,h=tip.offsetHeight,x=event.clientX,y=event.clientY;
 tip.style.left=Math.max(4,x+16+w>innerWidth?x-16-w:x+16)+'px';tip.style.top=Math.max(4,Math.min(y+16,innerHeight-h-4))+'px'};
const points=p=>p.pts??=[...p.getAttribute('d').matchAll(/(-?\d+),(-?\d+)/g)].map(m=>[+m[1],+m[2]]);
const at=(p,x)=>{const q=points(p);if(!q.length)return;
 if(p.classList.contains('dots')){const n=q.reduce((a,b)=>Math.abs(b[0]-x)<Math.abs(a[0]-x)?b:a);return Math.abs(n[0]-x)<150?n[1]:undefined}
 if(x<q[0][0]-50||x>q[q.length-1][0]+50)return;
 let lo=0,hi=q.length-1;while(hi-lo>1){const m=(lo+hi)>>1;q[m][0]<=x?lo=m:hi=m}
 const[a,b]=[q[lo],q[hi]];return b[0]===a[0]?a[1]:a[1]+(b[1]-a[1])*Math.min(1,Math.max(0,(x-a[0])/(b[0]-a[0])))};
const hue=p=>p.classList[1]+(p.classList.contains('square')?' square':'');
const rule=(svg,percent)=>{const r=svg.querySelector('.rule');r.setAttribute('x1',percent+'%');r.setAttribute('x2',percent+'%');r.style.visibility='visible'};
const line=(svg,event)=>{const d=svg.dataset,box=svg.getBoundingClientRect(),x0=+d.x0,x1=+d.x1,y0=+d.y0,y1=+d.y1;
 const step=Math.min(x1,Math.max(x0,Math.round(x0+(x1-x0)*(event.clientX-box.left)/box.width))),x=1e4*(step-x0)/(x1-x0);
 const rows=[row(d.x,step.toLocaleString('en'))];
 svg.querySelectorAll('path[data-n]').forEach(p=>{if(p.style.display)return;const y=at(p,x);if(y===undefined)return;const f=1-y/1e4;
  rows.push(row(p.dataset.n,show(+d.log?y0*Math.pow(y1/y0,f):y0+(y1-y0)*f),hue(p)))});
 rule(svg,x/100);
 place(event,rows)};
const snap=(svg,event)=>{const d=svg.dataset,box=svg.getBoundingClientRect(),x0=+d.x0,x1=+d.x1,f=(event.clientX-box.left)/box.width;
 const places=d.at.split(' ').map(v=>+d.xlog?Math.log(v/x0)/Math.log(x1/x0):(v-x0)/(x1-x0));
 const i=places.reduce((best,p,k)=>Math.abs(p-f)<Math.abs(places[best]-f)?k:best,0);
 const rows=[row(d.x,(+d.at.split(' ')[i]).toLocaleString('en'))];
 svg.querySelectorAll('path[data-v]').forEach(p=>{const v=p.dataset.v.split(' ')[i];if(p.style.display||v==='-')return;
  rows.push(row(p.dataset.n,show(v*d.factor)+' '+d.u,hue(p)))});
 rule(svg,100*places[i]);
 place(event,rows)};
const cell=(map,event)=>{const d=map.dataset,box=map.parentNode.getBoundingClientRect(),rows=+d.rows,columns=d.levels.length/rows;
 const c=Math.floor((event.clientX-box.left)/box.width*columns),r=Math.floor((event.clientY-box.top)/box.height*rows);
 if(c<0||r<0||c>=columns||r>=rows){tip.hidden=true;return}
 const l=d.levels[r*columns+c],low=+d.low,width=(+d.high-low)/10,x0=+d.x0,x1=+d.x1;
 const names=(text,i)=>text?text.split('|')[i]:i;
 const column=d.cn?names(d.cn,c):x1>x0?Math.round(x0+(x1-x0)*(c+.5)/columns).toLocaleString('en'):c;
 const value=l==='-'?'–':(l==='9'?'≥ '+show(low+9*width):show(low+l*width)+' – '+show(low+(+l+1)*width));
 place(event,[row(d.y,names(d.rn,r)),row(d.x,column),row(d.u,value)])};
document.querySelectorAll('svg.p').forEach(svg=>{const map=svg.querySelector('svg.h');
 if(map&&!map.dataset.levels)return;
 svg.parentNode.addEventListener('pointermove',e=>map?cell(map,e):svg.dataset.at?snap(svg,e):line(svg,e));
 svg.parentNode.addEventListener('pointerleave',()=>{tip.hidden=true;const r=svg.querySelector('.rule');if(r)r.style.visibility='hidden'});
 if(!map)svg.querySelectorAll('.d title').forEach(t=>t.remove())});
document.querySelectorAll('.chip').forEach(chip=>{chip.classList.add('can');chip.title='show or hide';
 chip.addEventListener('click',()=>{const off=chip.classList.toggle('off');document.querySelectorAll('.r'+chip.dataset.r).forEach(e=>e.style.display=off?'none':'')})});
})();
)js";

}  // namespace ingot::report
