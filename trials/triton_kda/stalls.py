import csv,sys,collections
rows=list(csv.reader(open(sys.argv[1])))
h=rows[1]; R=rows[2:]
ix={n:i for i,n in enumerate(h)}
st=[n for n in h if n.startswith('stall_') and 'Not' not in n]
def f(x):
    try: return float(x)
    except: return 0.
tot=sum(f(r[ix['# Samples']]) for r in R)
print('instr rows',len(R),'samples',tot)
print('by reason',[(n[6:],round(sum(f(r[ix[n]]) for r in R)/tot*100,1)) for n in sorted(st,key=lambda n:-sum(f(r[ix[n]]) for r in R))[:10]])
# regions: split where executed count changes
reg=[];cur=None
for k,r in enumerate(R):
    e=f(r[ix['Instructions Executed']]); s=f(r[ix['# Samples']])
    if cur is None or (abs(e-cur['e'])>0.02*max(e,cur['e']) ) :
        cur={'a':k,'e':e,'n':0,'s':0,'st':collections.Counter(),'ops':collections.Counter()}; reg.append(cur)
    cur['n']+=1; cur['s']+=s; cur['z']=k
    for n in st: cur['st'][n[6:]]+=f(r[ix[n]])
    op=[x for x in r[ix['Source']].split() if not x.startswith('@')]
    if op: cur['ops'][op[0].split('.')[0]]+=1
warps=max(c['e'] for c in reg if True)
print('region start..end  n-instr  exec/warp-base  samples%  reasons ops')
base=f(R[0][ix['Instructions Executed']])
for c in reg:
    if c['s']/tot>0.006: print(c['a'],c['z'],c['n'],round(c['e']/base,2),round(c['s']/tot*100,1),[(a,round(b/tot*100,1)) for a,b in c['st'].most_common(5)],{a:b for a,b in c['ops'].items() if a in('BAR','HGMMA','HMMA','MUFU','LDG','STG','SHFL','LDS','STS','LDL','STL','LDSM','STSM')})
if len(sys.argv)>2:
    print('top instr')
    top=sorted(range(len(R)),key=lambda k:-f(R[k][ix['# Samples']]))[:int(sys.argv[2])]
    for k in top: print(k,round(f(R[k][ix['# Samples']])/tot*100,2),R[k][ix['Source']][:60],[(n[6:],round(f(R[k][ix[n]])/tot*100,2)) for n in st if f(R[k][ix[n]])/tot>0.002])
