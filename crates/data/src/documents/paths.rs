//! Files of a source: a file, all files in a folder, or the matches of a glob.
//!
//! The list is sorted by path, so the same tree gives the same corpus on every machine. Hidden
//! files and folders are skipped, and empty files as well. An existing path is taken literally,
//! before it is tried as a glob.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use lockstep_platform::{FileKind, Files};

use super::error::DocumentError;
use super::pattern::{NamePattern, braces, is_pattern};
use crate::error::DataError;
use crate::shards::ShardSet;

/// Maximum folder depth, which bounds links to a parent folder.
const MAX_DEPTH: usize = 32;

/// Matches any number of folders, including none.
const ANY_FOLDERS: &str = "**";

/// Files of a source, sorted; at least one.
pub fn expand(source: &Path, files: &dyn Files) -> Result<Vec<PathBuf>, DataError> {
    let text = source.to_string_lossy();
    match files.metadata(source) {
        Some(FileKind::Directory) => folder(source, files),
        Some(FileKind::File { bytes: 0 }) => Err(DataError::EmptyFile { path: source.to_owned() }),
        Some(FileKind::File { .. }) => Ok(vec![source.to_owned()]),
        None if is_pattern(&text) => glob(&text, files),
        // Missing or not readable: opening it gives the reason.
        None => match files.open(source) {
            Ok(_) => Ok(vec![source.to_owned()]),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Err(DocumentError::Missing { path: source.to_owned() }.into())
            }
            Err(error) => Err(error.into()),
        },
    }
}

/// Size of a file; 0 if it is unknown.
pub(super) fn num_bytes(path: &Path, files: &dyn Files) -> u64 {
    match files.metadata(path) {
        Some(FileKind::File { bytes }) => bytes,
        _ => 0,
    }
}

fn folder(path: &Path, files: &dyn Files) -> Result<Vec<PathBuf>, DataError> {
    if ShardSet::is_at(path, files) {
        return Err(DocumentError::Shards { path: path.to_owned() }.into());
    }
    let mut found = BTreeSet::new();
    everything_in(path, files, MAX_DEPTH, &mut found)?;
    if found.is_empty() {
        return Err(DataError::EmptyFolder { path: path.to_owned() });
    }
    Ok(found.into_iter().collect())
}

fn everything_in(
    folder: &Path,
    files: &dyn Files,
    depth: usize,
    found: &mut BTreeSet<PathBuf>,
) -> Result<(), DataError> {
    if depth == 0 {
        return Err(DataError::TooDeep { path: folder.to_owned(), limit: MAX_DEPTH });
    }
    for path in files.list(folder)? {
        if name_of(&path).starts_with('.') {
            continue;
        }
        match files.metadata(&path) {
            Some(FileKind::Directory) => everything_in(&path, files, depth - 1, found)?,
            Some(FileKind::File { bytes: 0 }) => {}
            // Broken links are included, so that reading them reports their name.
            Some(FileKind::File { .. }) | None => drop(found.insert(path)),
        }
    }
    Ok(())
}

fn glob(pattern: &str, files: &dyn Files) -> Result<Vec<PathBuf>, DataError> {
    let wrong = |reason| DocumentError::Pattern { pattern: pattern.to_owned(), reason };
    let mut found = BTreeSet::new();
    for path in braces(pattern).map_err(wrong)? {
        let mut start = PathBuf::new();
        let mut parts = Vec::new();
        for component in Path::new(&path).components() {
            match component {
                Component::Normal(name) => {
                    parts.push(part(&name.to_string_lossy()).map_err(wrong)?);
                }
                other if parts.is_empty() => start.push(other),
                _ => return Err(wrong("a .. behind a name").into()),
            }
        }
        follow(&start, &parts, files, MAX_DEPTH, &mut found)?;
    }
    if found.is_empty() {
        return Err(DocumentError::NoMatch { pattern: pattern.to_owned() }.into());
    }
    Ok(found.into_iter().collect())
}

/// One path component of a glob.
enum Part {
    AnyFolders,
    Name(String),
    Pattern(NamePattern),
}

fn part(name: &str) -> Result<Part, &'static str> {
    Ok(match name {
        ANY_FOLDERS => Part::AnyFolders,
        name if is_pattern(name) => Part::Pattern(NamePattern::parse(name)?),
        name => Part::Name(name.to_owned()),
    })
}

/// Adds the files below a path that match the rest of a glob.
fn follow(
    at: &Path,
    parts: &[Part],
    files: &dyn Files,
    depth: usize,
    found: &mut BTreeSet<PathBuf>,
) -> Result<(), DataError> {
    if depth == 0 {
        return Err(DataError::TooDeep { path: at.to_owned(), limit: MAX_DEPTH });
    }
    let Some((part, rest)) = parts.split_first() else {
        if let Some(FileKind::File { bytes: 1.. }) = files.metadata(at) {
            found.insert(at.to_owned());
        }
        return Ok(());
    };
    match part {
        Part::Name(name) => follow(&at.join(name), rest, files, depth - 1, found),
        Part::Pattern(pattern) => {
            for path in entries(at, files)?.iter().filter(|path| pattern.matches(&name_of(path))) {
                follow(path, rest, files, depth - 1, found)?;
            }
            Ok(())
        }
        Part::AnyFolders => {
            follow(at, rest, files, depth - 1, found)?;
            let paths = entries(at, files)?;
            let visible = paths.iter().filter(|path| !name_of(path).starts_with('.'));
            for path in visible {
                match files.metadata(path) {
                    Some(FileKind::Directory) => follow(path, parts, files, depth - 1, found)?,
                    // A trailing ** also matches files.
                    _ if rest.is_empty() => follow(path, rest, files, depth - 1, found)?,
                    _ => {}
                }
            }
            Ok(())
        }
    }
}

/// Entries of a folder without a leading `./`; empty if it is not a folder.
fn entries(at: &Path, files: &dyn Files) -> Result<Vec<PathBuf>, DataError> {
    let folder = if at.as_os_str().is_empty() { Path::new(".") } else { at };
    if files.metadata(folder) != Some(FileKind::Directory) {
        return Ok(Vec::new());
    }
    let paths = files.list(folder)?;
    Ok(paths.into_iter().map(|path| at.join(path.file_name().unwrap_or_default())).collect())
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
