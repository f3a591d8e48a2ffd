	.file	"kern_gath2.cpp"
	.text
	.globl	cpp_fused_index_sum_0
	.type	cpp_fused_index_sum_0, @function
cpp_fused_index_sum_0:
	pushq	%rbp
	movq	%rsp, %rbp
	pushq	%r13
	pushq	%r12
	pushq	%rbx
	andq	$-128, %rsp
	subq	$904, %rsp
	movq	(%rdi), %r13
	movq	8(%rdi), %rcx
	movq	16(%rdi), %r12
	movq	24(%rdi), %r9
	movq	$0, 520(%rsp)
	movq	$0, 528(%rsp)
	movq	$0, 536(%rsp)
	movq	$0, 544(%rsp)
	movq	$0, 552(%rsp)
	movq	$0, 560(%rsp)
	movq	$0, 568(%rsp)
	movq	$0, 576(%rsp)
	movq	$0, 584(%rsp)
	movq	$0, 592(%rsp)
	movq	$0, 600(%rsp)
	movq	$0, 608(%rsp)
	movq	$0, 616(%rsp)
	movq	$0, 624(%rsp)
	movq	$0, 632(%rsp)
	movq	$0, 640(%rsp)
	vmovdqa64	520(%rsp), %zmm6
	vmovdqa64	%zmm6, -120(%rsp)
	vmovdqa64	584(%rsp), %zmm6
	vmovdqa64	%zmm6, -56(%rsp)
	movq	$0, 264(%rsp)
	movq	$0, 272(%rsp)
	movq	$0, 280(%rsp)
	movq	$0, 288(%rsp)
	movq	$0, 296(%rsp)
	movq	$0, 304(%rsp)
	movq	$0, 312(%rsp)
	movq	$0, 320(%rsp)
	movq	$0, 328(%rsp)
	movq	$0, 336(%rsp)
	movq	$0, 344(%rsp)
	movq	$0, 352(%rsp)
	movq	$0, 360(%rsp)
	movq	$0, 368(%rsp)
	movq	$0, 376(%rsp)
	movq	$0, 384(%rsp)
	vmovdqa64	264(%rsp), %zmm1
	vmovdqa64	%zmm1, 8(%rsp)
	vmovdqa64	328(%rsp), %zmm0
	vmovdqa64	%zmm0, 72(%rsp)
	vmovdqa64	%zmm1, 648(%rsp)
	vmovdqa64	%zmm0, 712(%rsp)
	vmovdqa64	%zmm1, 136(%rsp)
	vmovdqa64	%zmm0, 200(%rsp)
	vmovdqa64	%zmm1, 776(%rsp)
	vmovdqa64	%zmm0, 840(%rsp)
	movl	$0, %r10d
	vxorps	%xmm6, %xmm6, %xmm6
	movl	$1, %ebx
	movl	$125, %r11d
	movl	$0, %r8d
	jmp	.L6
.L4:
	leaq	(%rax,%rax,2), %rax
	salq	$6, %rax
	vmovups	(%rcx,%rax), %zmm7
	vaddps	264(%rsp), %zmm7, %zmm0
	vmovaps	%zmm0, 264(%rsp)
	vmovups	64(%rcx,%rax), %zmm3
	vaddps	328(%rsp), %zmm3, %zmm0
	vmovaps	%zmm0, 328(%rsp)
	vmovups	128(%rcx,%rax), %zmm0
	vaddps	392(%rsp), %zmm0, %zmm0
	vmovaps	%zmm0, 392(%rsp)
	addq	$8, %rdx
	cmpq	%rdi, %rdx
	je	.L2
.L5:
	movq	(%rdx), %rax
	leaq	200(%rax), %rsi
	testq	%rax, %rax
	cmovs	%rsi, %rax
	cmpq	$199, %rax
	jbe	.L4
	movl	$1, (%r9)
	movq	%r8, %rax
	jmp	.L4
.L2:
	vcvtps2pd	264(%rsp), %zmm5
	vaddpd	520(%rsp), %zmm5, %zmm5
	vmovaps	264(%rsp), %zmm4
	vextractf32x8	$0x1, %zmm4, %ymm2
	vcvtps2pd	%ymm2, %zmm2
	vaddpd	584(%rsp), %zmm2, %zmm2
	vmovapd	%zmm5, 520(%rsp)
	vmovapd	%zmm2, 584(%rsp)
	vcvtps2pd	328(%rsp), %zmm4
	vaddpd	648(%rsp), %zmm4, %zmm4
	vmovaps	328(%rsp), %zmm1
	vextractf32x8	$0x1, %zmm1, %ymm1
	vcvtps2pd	%ymm1, %zmm1
	vaddpd	712(%rsp), %zmm1, %zmm1
	vmovapd	%zmm4, 648(%rsp)
	vmovapd	%zmm1, 712(%rsp)
	vcvtps2pd	392(%rsp), %zmm3
	vaddpd	776(%rsp), %zmm3, %zmm3
	vmovaps	392(%rsp), %zmm7
	vextractf32x8	$0x1, %zmm7, %ymm0
	vcvtps2pd	%ymm0, %zmm0
	vaddpd	840(%rsp), %zmm0, %zmm0
	vmovapd	%zmm3, 776(%rsp)
	vmovapd	%zmm0, 840(%rsp)
	cmpq	$3000, %r10
	je	.L11
.L6:
	movq	%r10, %rax
	vmovaps	%zmm6, 264(%rsp)
	vmovaps	%zmm6, 328(%rsp)
	vmovaps	%zmm6, 392(%rsp)
	movq	%r10, %rsi
	addq	$125, %r10
	cmpq	%rax, %r10
	jle	.L2
	leaq	0(%r13,%rax,8), %rdx
	leaq	1(%rax), %rax
	cmpq	%rax, %r10
	movq	%r11, %rax
	cmovl	%rbx, %rax
	addq	%rsi, %rax
	leaq	0(%r13,%rax,8), %rdi
	jmp	.L5
.L11:
	vcvtpd2ps	%zmm5, %ymm5
	vcvtpd2ps	%zmm2, %ymm2
	vinsertf64x4	$0x1, %ymm2, %zmm5, %zmm2
	vmovups	%zmm2, (%r12)
	vcvtpd2ps	%zmm4, %ymm4
	vcvtpd2ps	%zmm1, %ymm1
	vinsertf64x4	$0x1, %ymm1, %zmm4, %zmm1
	vmovups	%zmm1, 64(%r12)
	vcvtpd2ps	%zmm3, %ymm3
	vcvtpd2ps	%zmm0, %ymm0
	vinsertf64x4	$0x1, %ymm0, %zmm3, %zmm0
	vmovups	%zmm0, 128(%r12)
	vzeroupper
	leaq	-24(%rbp), %rsp
	popq	%rbx
	popq	%r12
	popq	%r13
	popq	%rbp
	ret
	.size	cpp_fused_index_sum_0, .-cpp_fused_index_sum_0
	.ident	"GCC: (Debian 12.2.0-14+deb12u1) 12.2.0"
	.section	.note.GNU-stack,"",@progbits
