// Names the cell of a heat map under the pointer.
(()=>{
const make=(name,text)=>{const e=document.createElement(name);if(text!==undefined)e.textContent=text;return e};
const tip=document.body.appendChild(make('div'));tip.className='tip';tip.hidden=true;
const show=v=>{const a=Math.abs(v);return a&&(a<1e-3||a>=1e15)?v.toExponential(2):a>=1e4?Math.round(v).toLocaleString('en'):String(+v.toPrecision(4))};
const row=(name,value,colour)=>{const r=make('div'),n=make('span');if(colour){const k=make('span');k.className='dot '+colour;n.append(k)}n.append(name);r.append(n,make('b',value));return r};
const place=(event,rows)=>{tip.replaceChildren(...rows);tip.hidden=false;
 const w=tip.offsetWidth,h=tip.offsetHeight,x=event.clientX,y=event.clientY;
 tip.style.left=Math.max(4,x+16+w>innerWidth?x-16-w:x+16)+'px';tip.style.top=Math.max(4,Math.min(y+16,innerHeight-h-4))+'px'};
const cell=(map,event)=>{const d=map.dataset,box=map.parentNode.getBoundingClientRect(),rows=+d.rows,columns=d.levels.length/rows;
 const c=Math.floor((event.clientX-box.left)/box.width*columns),r=Math.floor((event.clientY-box.top)/box.height*rows);
 if(c<0||r<0||c>=columns||r>=rows){tip.hidden=true;return}
 const l=d.levels[r*columns+c],low=+d.low,width=(+d.high-low)/10,x0=+d.x0,x1=+d.x1;
 const names=(text,i)=>text?text.split('|')[i]:i;
 const column=d.cn?names(d.cn,c):x1>x0?Math.round(x0+(x1-x0)*(c+.5)/columns).toLocaleString('en'):c;
 const value=l==='-'?'–':(l==='9'?'≥ '+show(low+9*width):show(low+l*width)+' – '+show(low+(+l+1)*width));
 place(event,[row(d.y,names(d.rn,r)),row(d.x,column),row(d.u,value)])};
document.querySelectorAll('svg.p').forEach(svg=>{const map=svg.querySelector('svg.h');
 if(!map.dataset.levels)return;
 svg.parentNode.addEventListener('pointermove',e=>cell(map,e));
 svg.parentNode.addEventListener('pointerleave',()=>tip.hidden=true)});
})();
