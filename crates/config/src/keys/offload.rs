//! Keys of what lies on a disk instead of in memory. None of them changes a bit of the result.

use crate::key::{Default, Field, Key, field};
use crate::kind::Kind;
use crate::recipe::OffloadState;
use crate::value::Value;

use Default::Fixed;

const STATE: &str = "offload.state";

pub(super) const OFFLOAD: &[Key] = &[
    Key::new(
        STATE,
        Kind::Choice(OffloadState::NAMES),
        Fixed("\"none\""),
        field!(offload.state: choice OffloadState),
        "Where the optimizer's state is: none keeps it in memory, file in a file of each worker of \
         which a few mebibytes at a time are in memory. The file has no name and is gone with the \
         worker.",
    ),
    Key::new(
        "offload.folder",
        Kind::Text { may_be_empty: true },
        Fixed("\"\""),
        field!(offload.folder: String),
        "Folder of such files, on a disk with room for them; empty is the disk of the run's \
         folder.",
    )
    .only_when(STATE, &["file"]),
];
