// The values under the pointer are read back from the paths: a path's points lie in the plot's 10,000 units. Without this everything is
// still there but the tooltips and the switching of runs.
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
