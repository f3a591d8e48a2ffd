import torch
a=torch.tensor([1.,2.5,-2.5,1e-38,96.,-0.0,float('inf'),float('nan'),0.0]*4)
for y in (float('inf'),-float('inf'),1e-45,1e-38,3e38,0.0):
    print(y, torch.fmod(a,torch.full_like(a,y))[:9].tolist())
x=torch.randn(4,3,4,5).to(memory_format=torch.channels_last)
print(torch.roll(x,1,2).stride(), x.stride())
