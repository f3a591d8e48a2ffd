"""Expressions over numbers and sizes that vary, and their uses, for `recompiles.py`."""

from __future__ import annotations

INTS = """
a+b ;; a-b ;; a*b ;; a//2 ;; b//3 ;; a//max(b,1) ;; a%2 ;; a%3 ;; a%max(b,1) ;; a**2 ;; 2**abs(a) ;;
divmod(a,2)[0] ;; divmod(a,3)[1] ;; divmod(a,max(b,1))[1] ;; min(a,b) ;; max(a,b) ;; min(a,3) ;; max(a,2) ;;
min(a,n) ;; max(a,n) ;; min(n,m) ;; max(n,m) ;; min(a,b,n) ;; max(a,b,2) ;; min(n,5) ;; max(n,4) ;; abs(a) ;;
abs(a-b) ;; -a ;; round(u) ;; round(a/2) ;; int(u) ;; int(a/2) ;; int(a*0.5) ;; int(n*0.75) ;; float(a) ;;
int(float(a)) ;; math.ceil(a/2) ;; math.floor(u) ;; math.ceil(u) ;; math.floor(a/3) ;; math.trunc(u) ;;
int(math.log2(max(n,1))) ;; int(math.sqrt(n)) ;; math.isqrt(n) ;; math.gcd(a,b) ;; math.gcd(n,4) ;;
math.gcd(n,m) ;; math.lcm(abs(a),2) ;; math.comb(max(n,0),2) ;; math.factorial(min(max(a,0),5)) ;;
a if a>b else b ;; a if a==b else 0 ;; a if a%2==0 else a+1 ;; n if n>m else m ;; int(a>b) ;; int(n==m) ;;
(a>b)+(a>0) ;; (a>b)*n ;; bool(a) ;; not a ;; a and b ;; a or b ;; a<<1 ;; a>>1 ;; a&3 ;; a ;; a^b ;; ~a ;;
a&1 ;; abs(a).bit_length() ;; (n-1).bit_length() ;; 1<<(max(n,1)-1).bit_length() ;; n//2*2 ;; -(-n//4) ;;
(n+3)//4 ;; (n+3)//4*4 ;; (-n)%4 ;; n-n%4 ;; n*m ;; n*m//2 ;; x.numel()//3 ;; len(x) ;; len(range(a)) ;;
len(range(0,n,2)) ;; len(range(a,b)) ;; len([1]*max(a,0)) ;; len(list(range(n))) ;; sum(range(max(a,0))) ;;
sum((a,b,n)) ;; sum(x.shape) ;; math.prod(x.shape) ;; x.shape.numel() ;; x.ndim*a ;; x.size(0)*2 ;;
x.shape[:1][0]+1 ;; x.shape[-1]*2 ;; tuple(x.shape)[0] ;; list(x.shape)[1] ;; [a,b][0] ;; (a,b,n)[1] ;;
sorted((a,b))[0] ;; sorted([a,b,n])[-1] ;; max([a,b]) ;; min((n,m)) ;; int(str(a)) ;; len(str(a)) ;; hash(a)%7 ;;
a.__add__(1) ;; operator.add(a,b) ;; operator.floordiv(a,2) ;; operator.index(a) ;;
functools.reduce(operator.mul,x.shape) ;; max(min(a,n),0) ;; min(max(a,1),n) ;; max(0,n-a) ;; max(1,min(b,a)) ;;
pow(a,2) ;; pow(2,max(a,0)) ;; pow(abs(a),2,7) ;; int(a is None) ;; int(isinstance(a,int)) ;; a.real ;;
a.numerator ;; a.bit_count() if hasattr(a,'bit_count') else 0 ;; int.bit_length(a) ;; n-a-b ;; (a+b)//2 ;;
(a+n)%m ;; n//a if a else 1 ;; m%a if a else 0 ;; int(n/m) ;; round(n/m) ;; int(n**0.5) ;; int(a in (2,3)) ;;
int(a in range(2,5)) ;; int(1<a<5) ;; int(a!=b) ;; o.k ;; o.k+1 ;; o['k'] ;; c.k ;; c.k*2 ;; c.dims[0] ;;
c.dims[0]+c.dims[1] ;; fr.k ;; md ;; md+1 ;; md.value ;; kd.value ;; int(md) ;; ns ;; int(ns) ;; ns+1 ;;
int(nf) ;; int(t0) ;; sz[0] ;; sz[0]+sz[1] ;; sz.numel() ;; len(sz) ;; lst[0] ;; len(lst) ;; lst[-1]+1 ;;
sum(lst) ;; max(lst) ;; min(lst) ;; lst.index(max(lst)) ;; d['n'] ;; d.get('n',0) ;; len(d) ;; kwv ;; bf ;;
int(bf) ;; bf+1 ;; bf and a ;; a if bf else b ;; a | 1 ;; a | b
"""
"""Divided by `;;`."""

FLOATS = """
u ;; u+v ;; u-v ;; u*v ;; u/2 ;; u*a ;; a/b if b else 0.0 ;; a/2 ;; u**2 ;; abs(u) ;; -u ;; min(u,v) ;;
max(u,v) ;; min(u,1.0) ;; max(u,0.0) ;; min(max(u,0.0),1.0) ;; max(u,a) ;; min(u,n) ;; round(u) ;; round(u,1) ;;
round(u,2) ;; round(a/3,2) ;; round(u,0) ;; float(a) ;; float(n) ;; float(int(u)) ;; u//1 ;; u%1 ;; u%2.0 ;;
divmod(u,1.0)[1] ;; math.sqrt(abs(u)) ;; math.exp(-abs(u)) ;; math.log(abs(u)+1) ;; math.log2(n+1) ;;
math.sin(u) ;; math.cos(math.pi*u) ;; math.tanh(u) ;; 1/math.sqrt(m) ;; n**-0.5 if n else 0.0 ;;
0.5*(1+math.cos(u)) ;; u if u>0.5 else v ;; u if u==v else 1.0 ;; math.pow(abs(u),2) ;; math.hypot(u,v) ;;
math.atan2(u,v) ;; math.copysign(1.0,u) ;; math.fabs(u) ;; math.fmod(u,1.0) ;; math.modf(u)[0] ;;
math.floor(u)*0.5 ;; 1-0.9**a if a>=0 else 0.0 ;; 0.9**n ;; u**a if u>0 and a>=0 else 1.0 ;; 2.0**a ;;
10**-abs(a) ;; 1e-3*a ;; float('%.1f'%u) ;; float(str(u)) ;; int(u*10)/10 ;; u.is_integer() ;; math.isnan(u) ;;
math.isinf(u) ;; math.isclose(u,v) ;; u>v ;; (u>0)*v ;; u and v ;; u or v ;; not u ;; c.p ;; c.p*u ;; fr.p ;;
nf ;; nf*2 ;; float(nf) ;; nf+u ;; np.sqrt(abs(u)) ;; np.float32(u) ;; np.minimum(u,v) ;; sum((u,v)) ;;
sum([u]*3) ;; math.fsum((u,v)) ;; math.prod((u,v)) ;; o.f ;; d['f'] ;; lf[0] ;; sum(lf) ;; max(lf) ;;
sum(lf)/len(lf) ;; lerp(u,v,0.5) if False else u*0.5+v*0.5 ;; u*(1-v) ;; (n/m) ;; (a+0.5) ;; complex(u,v).real ;;
u.__mul__(2) ;; u.real ;; float(a>b) ;; a*0.1 ;; n*m/4 ;; math.erf(u) ;; math.gamma(abs(u)+1) ;;
math.lgamma(abs(u)+1) ;; math.degrees(u) ;; math.remainder(u,1.0) ;; math.expm1(u) ;; math.cosh(u) ;;
math.sinh(u) ;; math.asin(min(max(u,-1.0),1.0)) ;; math.log10(abs(u)+1) ;; math.log1p(abs(u)) ;;
math.log(abs(u)+1,2) ;; math.ldexp(u,1) ;; math.frexp(u)[0] ;; math.dist((u,),(v,))
"""

USES = """
x[:a] ;; x[a:] ;; x[a:b] ;; x[::k] ;; x[a::k] ;; x[:b:k] ;; x[1::2] ;; x[n//2:] ;; x[:-1] ;; x[:n-1] ;;
x[-a:] if a else x ;; x[:, :a] ;; x[..., :b] ;; x[..., -k:] ;; x[min(a,n-1)] if n else x ;; x[-1] if n else x ;;
x[a%n] if n else x ;; x[:min(a,b)] ;; x[min(a,b):max(a,b)] ;; x[:max(a,b)] ;; x[:min(n,m), :min(n,m)] ;;
x.narrow(0,0,min(max(a,0),n)) ;; x.select(1,min(k,m)-1) ;; torch.arange(n) ;; torch.arange(a) ;;
torch.arange(a,b) if a<=b else x ;; torch.arange(0,n,k) ;; torch.arange(n,0,-1) ;;
torch.arange(0,b,2) if b>=0 else x ;; torch.arange(n,dtype=torch.float32)*u ;; torch.linspace(0,1,n) ;;
torch.linspace(0,u,k) ;; torch.linspace(u,v,n) ;; torch.zeros(k) ;; torch.zeros(n,k) ;; torch.zeros(n+k,m) ;;
torch.ones(k,n).triu(a) ;; torch.ones(n,n).tril(a) ;; torch.eye(n) ;; torch.eye(k,n) ;; torch.full((n,k),u) ;;
torch.full((k,),a) ;; torch.empty(n,k).fill_(u) ;; x.new_zeros(n,k) ;; x.new_full((k,),u) ;; torch.tensor(a) ;;
torch.tensor(u) ;; torch.tensor([a,b]) ;; torch.tensor([u,v]) ;; torch.tensor([n,m]) ;; torch.tensor(x.shape) ;;
x*a ;; x+a ;; x/k ;; x//k ;; x%k ;; x**k ;; x-u ;; x*u ;; x/u if u else x ;; x>a ;; x>u ;; x==a ;; x.clamp(a) ;;
x.clamp(min=a,max=b) ;; x.clamp(max=u) ;; x.clamp(u,v) ;; torch.where(x>u,x,v) ;; x.masked_fill(x>u,v) ;;
x.add(1,alpha=a) ;; x.add(x,alpha=u) ;; x.sub(x,alpha=k) ;; torch.add(x,x,alpha=u) ;; x.lerp(x+1,u) ;;
x.addcmul(x,x,value=u) ;; x.addcdiv(x,x+10,value=u) ;; torch.addmm(torch.zeros(n,n),x,x.t(),beta=u,alpha=v) ;;
x.pow(u) if u>=0 else x ;; x.abs().pow(u) ;; x.reshape(n*m) ;; x.reshape(-1) ;; x.view(n*m) ;; x.view(-1,m) ;;
x.view(m,n) ;; x.reshape(1,n,m) ;; x.repeat(k,1) ;; x.repeat(1,k) ;; x.repeat(k,k) ;; x.expand(k,n,m) ;;
x[None].expand(k,-1,-1) ;; x.tile(k) ;; x.tile((k,2)) ;; x.repeat_interleave(k,0) ;; x.repeat_interleave(k,1) ;;
x.roll(a,0) ;; x.roll((a,b),(0,1)) ;; x.roll(1,-1) ;; x.split(k) ;; x.split(k)[-1] ;; x.split(k,1)[0] ;;
x.split(k,dim=1) ;; x.chunk(k) ;; x.chunk(k)[0] ;; x.chunk(2) ;; x.chunk(3,1) ;;
x.chunk(2,-1)[1] if m>1 else x ;; x.tensor_split(k) ;; x.tensor_split(2) ;; x.tensor_split((1,k)) ;;
x.split([k,n-k]) if n>=k else x ;; x.split((n//2,n-n//2)) ;; x.unbind() ;; x.unbind(1) ;;
x.unfold(0,k,1) if n>=k else x ;; x.unfold(1,2,k) if m>=2 else x ;; x.unfold(1,k,k) if m>=k else x ;;
F.pad(x,(k,0)) ;; F.pad(x,(0,k,k,0)) ;; F.pad(x,(0,-k)) if m>k else x ;; F.pad(x,(0,8-m)) if m<8 else x ;;
F.pad(x,(0,(-m)%4)) ;; F.pad(x,(a,b)) if a>=0 and b>=0 else x ;; F.pad(x,(1,1),value=u) ;;
F.pad(x[None],(k,0),mode='replicate') ;; x.topk(min(k,m)) ;; x.topk(min(k,m),-1)[0] ;;
x.topk(1,0)[0] if n else x ;; x.kthvalue(min(k,m))[0] ;; x.sort(0)[0][:k] ;; x.flip(0)[:k] ;;
F.interpolate(x[None],size=k) if n else x ;; F.interpolate(x[None],scale_factor=2) if n else x ;;
F.interpolate(x[None],scale_factor=float(k)) if n else x ;; F.interpolate(x[None,None],size=(k,m)) if n else x ;;
F.interpolate(x[None,None],size=(n*2,m*2),mode='bilinear') if n else x ;;
F.avg_pool1d(x[None],k) if n and m>=k else x ;; F.max_pool1d(x[None],2,stride=k) if n and m>=2 else x ;;
F.adaptive_avg_pool1d(x[None],k) if n else x ;; F.conv1d(x[None,:1],torch.ones(1,1,k)) if n and m>=k else x ;;
F.conv1d(x[None,:1],torch.ones(1,1,3),padding=k) if n else x ;;
F.conv1d(x[None,:1],torch.ones(1,1,1),stride=2)[...,:k] if n else x ;;
F.conv1d(x[None,:1],torch.ones(1,1,3),stride=2,padding=1)[...,:m] if n else x ;;
F.conv1d(x[None,:1],torch.ones(1,1,3),padding=2)[...,:m] if n else x ;;
F.conv1d(x[None,:1],torch.ones(1,1,2),dilation=k) if n and m>k else x ;;
F.dropout(x,u,training=False) if 0<=u<=1 else x ;; F.dropout(x,0.0) ;; F.dropout(x,1.0 if u>0.5 else 0.0) ;;
F.layer_norm(x,(m,)) ;; F.layer_norm(x,(m,),eps=abs(u)+1e-5) ;; F.softmax(x*u,-1) ;; F.softmax(x,k-k) ;;
F.leaky_relu(x,u) ;; F.elu(x,alpha=u) ;; F.softplus(x,beta=abs(u)+1) ;; F.threshold(x,u,v) ;;
F.hardtanh(x,-abs(u),abs(u)) ;; F.normalize(x,dim=0,eps=abs(u)+1e-5) ;; F.normalize(x,p=float(k)) ;;
F.gelu(x)*u ;; F.huber_loss(x,x*2,delta=abs(u)+0.1) if n else x ;;
F.smooth_l1_loss(x,x*2,beta=abs(u)) if n else x ;;
F.cross_entropy(x,torch.zeros(n,dtype=torch.long),label_smoothing=min(abs(u),1.0)) if n else x ;;
F.one_hot(torch.arange(n)%2,k+1) ;; F.glu(x[:,:m//2*2],1) if m>1 else x ;;
F.embedding(torch.arange(n)%3,torch.ones(3,k)) ;;
F.scaled_dot_product_attention(x[None],x[None],x[None],scale=abs(u)+0.1) if n else x ;; x.norm(k) ;;
x.norm(p=u) if u>0 else x ;; x.sum(k%2) ;; x.sum(0) if a>0 else x.sum(1) ;; x.mean(k-1) if k<3 and n else x ;;
x.softmax(a%2) if n else x ;; x.transpose(0,k%2) ;; x.movedim(0,-1) ;; x.unsqueeze(k%3) ;; x.flatten(0,k%2) ;;
x.cumsum(k%2) ;; x.diagonal(a) ;; x.diagonal() ;; x.diag() if n else x ;; torch.diag_embed(x,a) ;; x.tril(a) ;;
x.triu(k) ;; x.triu(n-m) ;; torch.tril_indices(n,k) ;; torch.combinations(torch.arange(n),2) if n>1 else x ;;
torch.cartesian_prod(torch.arange(n),torch.arange(k)) ;;
torch.meshgrid(torch.arange(n),torch.arange(k),indexing='ij') ;; torch.cat([x]*k) ;; torch.cat([x,x[:k]]) ;;
torch.cat([x[:k],x[k:]]) ;; torch.stack([x]*k) ;; torch.stack([x+i for i in range(k)]) ;;
torch.cat([x[i:i+1] for i in range(n)]) if n else x ;; torch.cat([x,torch.zeros(k,m)]) ;; torch.cat([x[:0],x]) ;;
x.index_select(0,torch.arange(min(n,k))) ;; x.gather(0,torch.zeros(k,m,dtype=torch.long)) if n else x ;;
x.scatter(0,torch.zeros(1,m,dtype=torch.long),u) if n else x ;;
x.index_fill(0,torch.tensor([0]),u) if n else x ;;
x.index_add(0,torch.arange(min(n,k)),torch.ones(min(n,k),m)) ;;
x.clone().index_fill_(0,torch.arange(min(n,k)),a) ;; torch.einsum('ij,kj->ik',x,torch.ones(k,m)) ;;
torch.bmm(x[None].expand(k,n,m),torch.ones(k,m,2)) ;; x@torch.ones(m,k) ;;
torch.outer(x[:,0],torch.arange(float(k))) ;; torch.cdist(x,torch.ones(k,m)) ;; x.unflatten(1,(-1,1)) ;;
x.unflatten(0,(n,1)) ;; x.as_strided((k,1),(1,1)) if n*m>=k else x ;; x.view(torch.int32).view(torch.float32) ;;
x.sum()*n ;; x.sum()/n if n else x ;; x.mean()*(n/m) ;; x.sum(0,keepdim=True).expand(n,m) ;; x.shape ;;
x.shape[0] ;; tuple(x.shape)+(a,) ;; (a,b,n,m) ;; {'n':n,'x':x*2} ;; [x]*k ;; (x,)*k ;; list(range(n)) ;;
[i*2 for i in range(a)] ;; x*len(lst) ;; x*len(str(a)) ;; (x,f'{a}') ;; (x,f'{n}x{m}') ;; (x*2,'%d'%a) ;;
(x*2,f'{u:.2f}') ;; (x*2,str(x.shape)) ;; {a:x*2} ;; {a:x,b:x*2}[b] ;; {0:x,1:x+1}.get(a,x*2) ;; d2.get(a,x) ;;
d2[k] if k in d2 else x*3 ;; lst2[k]*x ;; x*lst2[a%6] ;; weights[k%3](x) if False else x*w[k%3] ;; helper(x,a) ;;
helper(x,k=a,p=u) ;; helper(x,p=u) ;; kw(x,k=a,p=u) ;; va(x,n,k) ;; va(x,*sz) ;; va(x,*x.shape) ;;
x.new_zeros(x.shape[:1]) ;; x.new_zeros(x.shape[:-1]+(k,)) ;; x.new_zeros((*x.shape,k)) ;; torch.zeros(sz) ;;
torch.zeros(sz).sum(0) ;; torch.zeros([k,n]) ;; torch.zeros(*sz) ;; torch.zeros(torch.Size((k,n))) ;;
x.reshape(sz) if sz.numel()==n*m else x ;; x.expand(sz+x.shape) ;; x*o.k ;; x[:o.k] ;; x*c.k ;; x*c.p ;;
x[:c.k]*c.p ;; x.sum()*fr.k ;; x*fr.p ;; x*md ;; x[:md] ;; x*md.value ;; x*kd.value ;;
x+1 if kd is Kind.LOW else x ;; x+1 if md==Mode.A else x ;; x*ns ;; x*nf ;; x[:ns] ;; torch.zeros(ns) ;;
x*int(ns) ;; x+1 if ns>2 else x ;; x*d['n'] ;; x*d['f'] ;; x[:d['n']] ;; x*lst[0] ;; x*lst[-1] ;; x[:len(lst)] ;;
x+1 if bf else x ;; x*bf ;; x*lf[0] ;; torch.tensor(lst) ;; torch.tensor(lf) ;;
x.sum()+torch.tensor(lst).sum() ;; torch.randn(k,generator=None)*0 ;; torch.rand(n,k)*0 ;;
torch.randint(0,k,(n,))*0 ;; torch.randperm(n)*0 ;; torch.bernoulli(torch.full((n,),0.5))*0 ;;
x.bernoulli(0.5)*0 if 0<=u<=1 else x ;; torch.normal(u,1.0,(k,))*0 ;; x.clone().uniform_(0,abs(u)+1)*0 ;;
x.clone().normal_(u,1)*0 ;; torch.quantile(x,min(abs(u),1.0)) if n else x ;; torch.histc(x,bins=k) ;;
torch.bincount(torch.arange(n),minlength=k) ;; torch.fft.rfft(x,n=m+k) ;; torch.fft.fft(x,dim=k%2) if n else x ;;
torch.stft(torch.ones(32),k*4,return_complex=True,window=torch.ones(k*4)).abs() ;;
torch.nn.functional.unfold(x[None,None],(1,k)) if n and m>=k else x ;;
torch.nn.functional.pixel_shuffle(torch.ones(1,k*k,2,2),k) ;;
F.grid_sample(x[None,None],torch.zeros(1,k,2,2),align_corners=False) if n else x ;;
F.affine_grid(torch.eye(2,3)[None],(1,1,k,n+1),align_corners=False) ;; x.diff(n=min(k,2),dim=1) ;;
x.renorm(2,0,abs(u)+0.1) ;; x.cumprod(0)[:k] ;; torch.trapz(x,dx=u) ;; torch.logspace(0,1,k) ;;
torch.vander(torch.arange(3.),N=k) ;; torch.block_diag(*[x]*k) ;; torch.hamming_window(k) ;;
torch.hann_window(n+1) ;; x.swapaxes(0,k%2) ;; x.rot90(k) ;; x.squeeze(k%2) ;; x.squeeze() ;;
x.unsqueeze(0).squeeze(0) ;; x.contiguous()[:k].contiguous() ;; x[:k].t().contiguous() ;; x.t()[:k] ;;
x.t().reshape(-1)[:k] ;; x.T.contiguous().view(-1) ;; x.to(torch.float64)[:k] ;; x.bool()[:a] ;; x[x>u] ;;
x.nonzero()[:k] ;; x.masked_select(x>a) ;; x[torch.arange(min(k,n))] ;; x[[0]*min(k,n)] ;;
x[:, [i for i in range(min(k,m))]] ;; x[list(range(min(n,k)))] ;; x[torch.tensor([min(k,n)-1])] if n else x ;;
x.index_put((torch.tensor([0]),),torch.tensor(u)) if n else x ;; x.movedim(k%2,0) ;; x.max(k%2)[0] if n else x ;;
x.argmax(k%2) if n else x ;; x.std(0,correction=k%2) ;; x.var(unbiased=a>2) ;; x.all(k%2) ;; x.logsumexp(k%2) ;;
x.view(n,k,m//k) if m%k==0 else x ;; x.reshape(n,m//k,k) if m%k==0 else x[:, :m//k*k].reshape(n,m//k,k) ;;
x[:n//k*k].reshape(-1,k,m) ;; x[:n//2*2].view(-1,2,m) ;; x.view(n,-1,1).expand(-1,-1,k) ;; x[:, ::2] ;; x[::2] ;;
x[n//2::2] ;; x[:, k-1::k] ;; x[a:a+k] ;; x[n-k:n] if n>=k else x ;; x[k:-k] if n>2*k else x ;; x[-k:] ;;
x[:-k] ;; torch.nn.Linear(m,k)(x)*0 ;; torch.nn.Dropout(min(abs(u),1.0)).eval()(x) ;; torch.nn.LayerNorm(m)(x) ;;
torch.nn.Identity()(x)*k ;; torch.nn.Upsample(scale_factor=k)(x[None]) if n else x ;; torch.nn.ZeroPad1d(k)(x) ;;
torch.nn.Flatten(0,k%2)(x)
"""
