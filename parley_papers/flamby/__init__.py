"""FLamby's benchmarks of two small tables by hospital, run here by its recipe: our rows beside its own."""
