// At the end of a template: what it was given (`Loops.kernel`), so that it can be included again.
#undef MT_NAME
#undef MT_M
#undef MT_N
#undef MT_C
#undef MT_A
#undef MT_B
