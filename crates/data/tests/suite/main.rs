//! Tests of data sources, sampling and loading through the public interface.

mod props;
mod sources;
