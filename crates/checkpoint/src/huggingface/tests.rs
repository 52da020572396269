//! Folders as other programs write them, and everything they should not be.
