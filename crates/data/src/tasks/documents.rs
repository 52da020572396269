//! Documents of a task's data files: JSON Lines, or one JSON list of objects.
//!
//! As in a table of the `datasets` library, every document has the fields of all of them; those it
//! lacks are null.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use lockstep_platform::Files;
use serde_json::{Map, Value};

use super::error::TaskError;
use crate::documents::input::Input;
use crate::error::DataError;

/// A document.
pub(super) type Document = Map<String, Value>;

/// Bytes read at a time.
const PORTION_BYTES: usize = 1 << 20;

/// Reads the documents of several files.
pub(super) fn read(paths: &[PathBuf], files: &dyn Files) -> Result<Vec<Document>, DataError> {
    let mut documents = Vec::new();
    for path in paths {
        let mut bytes = Vec::new();
        let mut input = Input::open(path, files)?;
        while input.read(PORTION_BYTES, &mut bytes)? > 0 {}
        documents.append(&mut parse(path, &bytes)?);
    }
    let names: BTreeSet<String> = documents.iter().flat_map(Map::keys).cloned().collect();
    for document in &mut documents {
        for name in &names {
            document.entry(name.clone()).or_insert(Value::Null);
        }
    }
    Ok(documents)
}

fn parse(path: &Path, bytes: &[u8]) -> Result<Vec<Document>, TaskError> {
    let invalid = |reason| TaskError::Documents { path: path.to_owned(), reason };
    let begin = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
    if begin == Some(&b'[') {
        return serde_json::from_slice(bytes).map_err(|error| invalid(error.to_string()));
    }
    let mut documents = Vec::new();
    for (index, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let document = serde_json::from_slice(line);
        let wrong = |error| invalid(format!("line {}: {error}", index + 1));
        documents.push(document.map_err(wrong)?);
    }
    Ok(documents)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_platform::ScratchDir;

    #[test]
    fn lines_and_lists_are_read_and_missing_fields_are_null() {
        let world = lockstep_platform::real();
        let scratch = ScratchDir::new(&world, "task-documents").unwrap();
        let (lines, list) = (scratch.path().join("a.jsonl"), scratch.path().join("b.json"));
        world.files().write_atomic(&lines, b"{\"a\": 1}\n\n{\"b\": [2]}").unwrap();
        world.files().write_atomic(&list, b" [{\"a\": 3}]\n").unwrap();
        let documents = read(&[lines.clone(), list], world.files()).unwrap();
        let text = serde_json::to_string(&documents).unwrap();
        assert_eq!(text, r#"[{"a":1,"b":null},{"a":null,"b":[2]},{"a":3,"b":null}]"#);
        world.files().write_atomic(&lines, b"{\"a\": 1}\n[2]\n").unwrap();
        let error = read(&[lines], world.files()).unwrap_err().to_string();
        assert!(error.contains("a.jsonl") && error.contains("line 2"), "{error}");
    }
}
