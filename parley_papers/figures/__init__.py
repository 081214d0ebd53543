"""The figures of single papers' studies, one module per kind of figure; they draw numbers and know no study."""
