//! What a store promises.
