"""Bodies of small functions of sizes and numbers that vary, for `recompiles.py`: a blank line apart."""

from __future__ import annotations

BLOCKS = """
i = n
count = 0
while i > 1:
    i //= 2
    count += 1
r = x * count

while a > b:
    x = x + 1
    a -= 1
r = x

r = x
for i in range(k):
    r = r + i

r = x
for i in range(n):
    r = r + x[i]

r = x
for i in range(n - 1, 0, -1):
    r = r * 0.5 + x[i]

r = x
for i in range(0, n, k):
    r = r + x[i:i + k].sum()

r = x
for i in range(a):
    if i == 2:
        break
    r = r + i

r = x
for i, s in enumerate(x.shape):
    r = r * s + i

r = x
for i, j in zip(range(n), range(k)):
    r = r + i * j

r = x
for row in x:
    r = r + row

r = sum(range(n)) * x

r = sum(i for i in range(n)) * x

r = sum(x[i, 0] for i in range(n)) if n else x

r = x
idx = list(range(n))
idx.reverse()
r = x[idx]

r = x
perm = list(range(n))
r = x[perm[:k]]

pos = [i for i in range(n) if i % k == 0]
r = x[pos]

pos = torch.tensor([i for i in range(n)])
r = x[pos]

pos = torch.tensor(list(range(n)))
r = x * 2 + pos[:1]

pos = torch.arange(n)[:, None] + torch.arange(m)
r = x * pos

pos = torch.as_tensor([i * u for i in range(n)])
r = x * pos[:, None]

o.step += 1
r = x * o.step

o.step += 1
r = x / (1 - 0.9 ** o.step)

o.step += 1
if o.step > 3:
    r = x * 2
else:
    r = x

o.step += 1
if o.step % 2 == 0:
    r = x * 2
else:
    r = x

o.step += k
r = x[:o.step]

o.count = o.count + n
r = x * o.count

o.last = n
r = x * o.last

o.hist.append(u)
r = x * sum(o.hist) / len(o.hist)

o.table[n] = a
r = x * len(o.table)

o.table[a] = o.table.get(a, 0) + 1
r = x * o.table[a]

o.cache = o.cache or {}
if n not in o.cache:
    o.cache[n] = torch.arange(n)
r = x * o.cache[n][:, None]

o.ema = o.ema * 0.9 + u * 0.1
r = x * o.ema

o.best = max(o.best, u)
r = x * o.best

o.best = min(o.best, n)
r = x[:o.best]

o.lr *= 0.5
r = x - o.lr * x

o.lr = 0.1 / (1 + o.step)
o.step += 1
r = x - o.lr * x

if n > m:
    r = x.sum(0)
elif n == m:
    r = x.sum(1)
else:
    r = x

if a > 2 and b > 2:
    r = x * 2
else:
    r = x

if a > b:
    a, b = b, a
r = x * (b - a)

if u > 0.5:
    r = x * u
else:
    r = x

if u == 0:
    r = x
else:
    r = x * u

if u != 1.0:
    x = x * u
r = x + 1

if k > 1:
    x = x.repeat(k, 1)
r = x

if a is not None and a > 0:
    x = x[:a]
r = x

assert m > 0, f'{m} of {n}'
r = x * 2

if n % 2:
    x = F.pad(x, (0, 0, 0, 1))
r = x.view(-1, 2, m)

if n % 4 != 0:
    x = F.pad(x, (0, 0, 0, 4 - n % 4))
r = x.view(-1, 4, m)

p = (4 - n % 4) % 4
r = F.pad(x, (0, 0, 0, p)).view(-1, 4, m)

pad = max(0, 4 - n)
r = F.pad(x, (0, 0, 0, pad))

h = int(n * 0.5)
r = torch.cat([x[h:], x[:h]])

h = round(n * u) if 0 <= u <= 1 else n
r = x[:h]

q, w_ = divmod(n, k)
r = x[:q * k].reshape(q, k, m) if q else x

size = x.shape[:-1] + (1, m)
r = x.view(size)

size = list(x.shape)
size[0] = k
r = x.new_ones(size)

shape = x.size()
x = x.reshape(-1)
r = x[: shape[0]].sum() + x.view(shape)

b_, c_ = x.shape
r = x.reshape(b_, 1, c_).expand(b_, k, c_).reshape(b_ * k, c_)

r = x.view(n, 1, m).repeat(1, k, 1).view(n * k, m)

y = x[:k]
r = y * y.shape[0]

y = x[k:]
r = y.sum() * len(y)

y = torch.cat([x, x])
r = y[:n] + y.shape[0]

y = x[x[:, 0] > u]
r = y * 2

r = x
for s in lst:
    r = r * s

r = x
for i, s in enumerate(lst):
    r = r[:max(s, 0)] + i

parts = x.chunk(k)
r = [p_.sum() for p_ in parts]

parts = x.split(k)
r = parts[-1] * len(parts)

parts = x.split(k)
r = torch.stack([p_.sum() for p_ in parts])

first, *rest = x.split(k)
r = first * len(rest)

t = tuple(i for i in (a, b, n))
r = x * t[0] + t[-1]

lo, hi = sorted((a, b))
r = x[lo:hi]

lo, hi = min(a, b), max(a, b)
r = x.clamp(lo, hi)

s = slice(a, b)
r = x[s]

s = slice(0, n, k)
r = x[s]

start = max(n - k, 0)
r = x[start:n]

y = x.clone()
y[:k] = u
r = y

y = x.clone()
y[:, :k] += a
r = y

y = x.clone()
y[::k] = 0
r = y

y = x.clone()
y[k:] = x[k:] * 2
r = y

y = torch.zeros(n + k, m)
y[:n] = x
r = y

y = torch.zeros(k, m)
j = min(n, k)
y[:j] = x[:j]
r = y

msg = f'size {n} {a}'
r = (x * 2, len(msg))

msg = f'size {n}'
r = (x * 2, msg)

key = f'{n}'
r = x * len(key)

print_ = '%d' % a
r = x * 2

name = 'abc'[k % 3]
r = x * {'a': 1, 'b': 2, 'c': 3}[name]

match k:
    case 1:
        r = x
    case 2:
        r = x * 2
    case _:
        r = x * k

match (n, m):
    case (0, _):
        r = x
    case (p_, q_) if p_ > q_:
        r = x * p_
    case _:
        r = x + 1

r = {1: lambda z: z, 2: lambda z: z * 2}.get(k, lambda z: z * k)(x)

try:
    r = x[: a] / (n - 3)
except ZeroDivisionError:
    r = x

try:
    r = x * (b // (a - 3))
except ZeroDivisionError:
    r = x

try:
    r = x[a]
except IndexError:
    r = x

heads = k
d_ = m // heads
r = x[:, :heads * d_].view(n, heads, d_).transpose(0, 1)

sc = 1 / math.sqrt(m)
r = (x @ x.t()) * sc

sc = m ** -0.5
r = (x @ x.t()) * sc

mask = torch.ones(n, n).tril()
r = (x @ x.t()).masked_fill(mask == 0, float('-inf'))

mask = torch.full((n, n), float('-inf')).triu(1 + a)
r = x @ x.t() + mask

off = n - m
r = torch.ones(n, m).triu(off)

t = o.t
r = t[:, :n] * 2

t = o.t
r = t[:n, :k] * 2

t = o.t
r = t[n:n + k] * 2

win = 4
if n > win:
    x = x[-win:]
r = x * 2

past = o.count
o.count += n
r = x + torch.arange(past, past + n)[:, None]

past = o.kv
o.kv = x if past is None else torch.cat([past, x])
r = o.kv.sum(0)

c = dataclasses.replace(c, k=a)
r = x * c.k

c2 = Conf(a, u, (n, m))
r = x * c2.k * c2.p + c2.dims[0]

c.k += 1
r = x * c.k

nt = collections.namedtuple('P', 'a b')(a, b)
r = x * nt.a + nt.b

cn = collections.Counter([a, b, n])
r = x * cn[a]

dq = collections.deque([a, b, n], maxlen=2)
r = x * dq[0]

r = x * (a in {1, 2, 3})

ac = list(itertools.accumulate([a, b, n]))
r = x * ac[-1]

pr = list(itertools.product(range(k), range(2)))
r = x * len(pr)

r = x * np.prod(x.shape)

r = x * int(np.prod(x.shape))

r = x * np.float32(u)

r = x * float(np.sqrt(m))

r = torch.from_numpy(np.arange(n))

r = torch.from_numpy(np.zeros((n, k)))

r = torch.tensor(np.arange(k))

f_ = functools.partial(helper, k=a)
r = f_(x)

def inner(z):
    return z * a + u
r = inner(x)

g = lambda z, s=k: z[:s]
r = g(x)

r = x.sum()
r = r.expand(k, n)

r = F.interpolate(x[None, None], size=(max(n // 2, 1), max(m // 2, 1))) if n else x

r = F.interpolate(x[None, None], scale_factor=0.5, mode='nearest') if n > 1 and m > 1 else x

hh, ww = math.ceil(n / 2), math.ceil(m / 2)
r = F.interpolate(x[None, None], size=(hh, ww), mode='bilinear') if n else x

y = F.conv1d(x[None, :1], torch.ones(1, 1, 3), stride=2, padding=1) if n else x[None]
r = y[..., : (m + 1) // 2] * 2

y = F.max_pool1d(x[None], 2) if n and m > 1 else x[None]
r = F.interpolate(y, size=m) if n else x

y = F.max_pool2d(x[None, None], 2) if n > 1 and m > 1 else x
r = y * y.shape[-1]

L = m
y = F.conv1d(x[None, :1], torch.ones(1, 1, 4), padding=3) if n else x[None]
r = y[..., :L]

L = m
y = F.conv_transpose1d(x[None, :1], torch.ones(1, 1, 4), stride=2) if n else x[None]
r = y[..., :L]

seg = n // k
r = torch.stack([x[i * seg:(i + 1) * seg].sum() for i in range(k)])

ks = 2 * k + 1
r = F.pad(x, (k, k)).unfold(1, ks, 1).mean(-1)

ks = min(k, m)
r = x.unfold(1, ks, 1)

nw = (m - 2) // 2 + 1 if m >= 2 else 0
r = x[:, : nw * 2]

blocks = -(-n // 4)
r = torch.cat([x, torch.zeros(blocks * 4 - n, m)]).view(blocks, 4, m)

lv = int(math.log2(n)) if n else 0
r = x * lv

lv = math.ceil(math.log2(max(n, 1)))
r = x.repeat(lv + 1, 1)

y = x
while y.shape[0] > 1:
    h_ = y.shape[0] // 2
    y = y[:h_] + y[h_:2 * h_]
r = y

y = x
while y.shape[0] > 2:
    y = y[::2]
r = y

tot = 0
for s in x.shape:
    tot += s
r = x * tot

tot = 0.0
for z in lf:
    tot += z
r = x * (tot / len(lf))

r = [x[i] for i in range(min(n, k))]

r = dict((i, x * i) for i in range(k))

r = {f'k{i}': x * i for i in range(k)}

r = x.new_tensor([i / n for i in range(n)])

r = torch.tensor([[a, b], [n, m]])

r = torch.tensor([a] * k)

r = torch.tensor([0] * n)

r = torch.zeros(n).scatter_(0, torch.arange(min(k, n)), u)

r = x.mul(torch.tensor(u))

r = x.sum() if a == b else x.mean(1)

with torch.no_grad():
    r = x * a

r = F.dropout(x, p=0.5 if bf else 0.0, training=False)

m_ = md
r = x * int(m_) if m_ > Mode.A else x

r = x * list(Mode)[k % 3]

r = x * Mode(2)
r = r + md.value

r = x * {Mode.A: 1, Mode.B: 2, Mode.C: 3}[md]

r = x * {Kind.LOW: 1.5, Kind.MID: 2.5, Kind.HIGH: 3.5}[kd]

r = x * hash(kd.name == 'LOW')

r = x * (kd == Kind.MID)

al = 1 - min(o.step / 10, 1.0)
o.step += 1
r = x * al

wu = min(1.0, (o.step + 1) / 4)
o.step += 1
r = x * wu

o.step += 1
if o.step <= 2:
    r = x
else:
    r = x * (o.step - 2)

o.step += 1
go = o.step % 3 == 0
r = x * 2 if go else x

o.step += 1
lr = 0.1 * 0.5 * (1 + math.cos(math.pi * o.step / 10))
r = x * lr

o.step += 1
beta = 1 - (o.step + 1) ** -0.8
r = x * beta

o.step += 1
rho = 2 / (1 - 0.99) - 1 - 2 * o.step * 0.99 ** o.step / (1 - 0.99 ** o.step)
r = x * (math.sqrt(rho) if rho > 5 else 1.0)

k1, k2 = 0.9 ** a if a > 0 else 1.0, u
r = x * k1 + k2

o.state['step'] += 1
r = x / o.state['step']

o.state['step'] = o.state.get('step', 0) + 1
r = x * (o.state['step'] > 2)

gs = o.groups
for g_ in gs:
    g_['lr'] *= 0.9
r = x * gs[0]['lr']
"""
