//! Keys of offload to disk. None of them changes a bit of the result.

use crate::key::{Default, Field, Key, field};
use crate::recipe::OffloadState;
use crate::value::Value;
use crate::value_type::ValueType;

use Default::Fixed;

const STATE: &str = "offload.state";

pub(super) const OFFLOAD: &[Key] = &[
    Key::new(
        STATE,
        ValueType::Choice(OffloadState::NAMES),
        Fixed("\"none\""),
        field!(offload.state: choice OffloadState),
        "Where the optimizer state is kept: none in memory, file in an unlinked file per worker of \
         which a few mebibytes at a time are in memory. The file disappears with the worker.",
    ),
    Key::new(
        "offload.folder",
        ValueType::Text { may_be_empty: true },
        Fixed("\"\""),
        field!(offload.folder: String),
        "Folder of the offload files, on a disk with enough space; empty uses the disk of the run \
         folder.",
    )
    .only_when(STATE, &["file"]),
];
