//! Every layout of a model on a cluster, and the best of them.
