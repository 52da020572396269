//! Offload of optimizer state to disk.

use crate::topic::{choices, topic};

topic! {
    /// Offload to disk. Never changes a bit of the result.
    #[derive(Eq)]
    pub struct Offload at offload, table "offload", layout() {
        /// Where the optimizer state is kept: none in memory, file in an unlinked file per worker
        /// of which a few mebibytes at a time are in memory. The file disappears with the worker.
        state: OffloadState = "none";

        /// Folder of the offload files, on a disk with enough space; empty uses the disk of the run
        /// folder.
        folder: String = "", when("offload.state", &["file"]);
    }
}

choices! {
    /// Where the optimizer state is kept.
    OffloadState {
        /// In memory.
        None = "none",
        /// In a file that is mapped in pieces.
        File = "file",
    }
}
