//! Conformance checks of files.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::Row;
use crate::{FileError, FileKind, World, write_atomic_with};

pub(super) const CHECKS: &[Row] = &[
    ("an atomic write is read back", atomic_write_round_trips),
    ("a failed atomic write leaves the old file and no litter", failed_write_leaves_old_file),
    ("creating empties, appending extends", create_empties_append_extends),
    ("written bytes are visible before the writer is closed", writes_are_not_buffered),
    ("parts of an open file can be read at any offset", reads_parts),
    ("an open file outlives the replacement of its path", open_file_outlives_replacement),
    ("a mapped file is copied from at any offset, an empty one too", maps_are_copied_from),
    ("paged arrays start as zeros, keep their values, and leave no name", paged_numbers),
    ("a missing file is named with the reason", missing_file_is_named),
    ("text that is not UTF-8 is refused with its position", bad_text_is_refused),
    ("a folder lists its entries sorted", list_is_sorted),
    ("metadata distinguishes files, folders and missing paths", metadata_tells_apart),
    ("renaming moves and replaces", rename_moves_and_replaces),
    ("a folder is removed with its content", remove_dir_all_removes_all),
];

/// Unwraps with the error's own text, which names the path.
fn ok<T>(result: Result<T, FileError>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

fn atomic_write_round_trips(world: &World, dir: &Path) {
    let (files, path) = (world.files(), dir.join("file"));
    for bytes in [&b""[..], b"short", &[7; 9_000], b"shorter again"] {
        ok(files.write_atomic(&path, bytes));
        assert_eq!(ok(files.read(&path)), bytes);
    }
    ok(write_atomic_with(world, &path, |writer| {
        writer.write_all(b"in ")?;
        writer.write_all(b"pieces")
    }));
    assert_eq!(ok(files.read_to_string(&path)), "in pieces");
    assert_eq!(ok(files.list(dir)), [path]);
}

fn failed_write_leaves_old_file(world: &World, dir: &Path) {
    let (files, path) = (world.files(), dir.join("file"));
    ok(files.write_atomic(&path, b"old"));
    let failed = write_atomic_with(world, &path, |writer| {
        writer.write_all(b"new")?;
        Err(std::io::Error::other("no more"))
    });
    assert!(failed.is_err());
    assert_eq!(ok(files.read(&path)), b"old");
    assert_eq!(ok(files.list(dir)), [path]);

    let nowhere = dir.join("missing folder").join("file");
    let error = files.write_atomic(&nowhere, b"bytes").expect_err("its folder is missing");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(error.path(), nowhere);
}

fn create_empties_append_extends(world: &World, dir: &Path) {
    let (files, path) = (world.files(), dir.join("file"));
    for (open_for_append, text, expected) in
        [(true, "ab", "ab"), (true, "cd", "abcd"), (false, "e", "e"), (true, "f", "ef")]
    {
        let writer = if open_for_append { files.append(&path) } else { files.create(&path) };
        let mut writer = ok(writer);
        writer.write_all(text.as_bytes()).expect("the disk takes a few bytes");
        ok(writer.sync());
        drop(writer);
        assert_eq!(ok(files.read_to_string(&path)), expected);
    }
}

fn writes_are_not_buffered(world: &World, dir: &Path) {
    let path = dir.join("file");
    let mut writer = ok(world.files().append(&path));
    writer.write_all(b"visible").expect("the disk takes a few bytes");
    assert_eq!(ok(world.files().read(&path)), b"visible");
}

fn reads_parts(world: &World, dir: &Path) {
    let path = dir.join("file");
    ok(world.files().write_atomic(&path, b"0123456789"));
    let reader = ok(world.files().open(&path));
    assert_eq!(reader.num_bytes(), 10);
    let mut part = [0; 3];
    ok(reader.read_exact_at(6, &mut part));
    assert_eq!(&part, b"678");
    ok(reader.read_exact_at(0, &mut part));
    assert_eq!(&part, b"012");
    ok(reader.read_exact_at(10, &mut []));
    let error =
        reader.read_exact_at(8, &mut part).expect_err("two bytes are left, three requested");
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    assert!(world.files().open(dir).is_err(), "a folder was opened as a file");
}

fn open_file_outlives_replacement(world: &World, dir: &Path) {
    let path = dir.join("file");
    ok(world.files().write_atomic(&path, b"old"));
    let reader = ok(world.files().open(&path));
    ok(world.files().write_atomic(&path, b"new"));
    let mut bytes = [0; 3];
    ok(reader.read_exact_at(0, &mut bytes));
    assert_eq!(&bytes, b"old");
}

fn maps_are_copied_from(world: &World, dir: &Path) {
    let (files, path) = (world.files(), dir.join("file"));
    let content: Vec<u8> = (0..10_000_u32).map(|i| (i % 251) as u8).collect();
    ok(files.write_atomic(&path, &content));
    let map = ok(files.map(&path));
    // The map keeps the file's content, whatever happens to the name.
    ok(files.write_atomic(&path, b""));
    assert_eq!(map.num_bytes(), 10_000);
    for (offset, length) in [(0, 10_000), (4_095, 2), (9_999, 1), (10_000, 0)] {
        let mut part = vec![0; length];
        map.copy_to(offset, &mut part);
        assert_eq!(part, content[offset as usize..][..length], "{length} bytes at {offset}");
    }
    let empty = ok(files.map(&path));
    assert_eq!(empty.num_bytes(), 0);
    empty.copy_to(0, &mut []);
    assert!(files.map(dir).is_err(), "a folder was mapped");
    assert!(files.map(&dir.join("absent")).is_err(), "nothing was mapped");
}

fn paged_numbers(world: &World, dir: &Path) {
    let mut parts = ok(world.files().paged(dir, &[5000, 0, 3]));
    assert_eq!(ok(world.files().list(dir)), <[PathBuf; 0]>::default());
    for (number, part) in parts.iter_mut().enumerate() {
        let len = part.floats().len();
        assert!(part.floats().iter().all(|value| value.to_bits() == 0));
        part.read_ahead(0..len);
        ok(part.load(0..len));
        part.floats_mut().fill(number as f32 + 1.0);
        part.release(0..len);
    }
    parts[0].release_all();
    let lens: Vec<usize> = parts.iter().map(|part| part.floats().len()).collect();
    assert_eq!(lens, [5000, 0, 3]);
    for (number, part) in parts.iter().enumerate() {
        let is_kept = |value: &f32| value.to_bits() == (number as f32 + 1.0).to_bits();
        assert!(part.floats().iter().all(is_kept));
    }
    let nowhere = dir.join("missing folder");
    let error = world.files().paged(&nowhere, &[1]).expect_err("its folder is missing");
    assert_eq!((error.kind(), error.path()), (ErrorKind::NotFound, &*nowhere));
}

fn missing_file_is_named(world: &World, dir: &Path) {
    let path = dir.join("absent.txt");
    let error = world.files().read(&path).expect_err("nothing was written");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(error.path(), path);
    assert_eq!(error.to_string(), format!("cannot read {}: no such file", path.display()));
    let removed = world.files().remove_file(&path).expect_err("nothing to remove");
    assert_eq!(removed.kind(), ErrorKind::NotFound);
    assert!(world.files().open(&path).is_err());
    assert!(world.files().list(&path).is_err());
}

fn bad_text_is_refused(world: &World, dir: &Path) {
    let path = dir.join("latin1.txt");
    ok(world.files().write_atomic(&path, b"caf\xe9 noir"));
    let error = world.files().read_to_string(&path).expect_err("it is not UTF-8");
    assert_eq!(error.kind(), ErrorKind::InvalidData);
    assert!(error.to_string().ends_with("not UTF-8 text from byte 3 on"), "{error}");
}

fn list_is_sorted(world: &World, dir: &Path) {
    let names = ["b", "a", "c10", "c9"];
    for name in names {
        ok(world.files().write_atomic(&dir.join(name), b""));
    }
    let expected: Vec<PathBuf> =
        ["a", "b", "c10", "c9"].iter().map(|name| dir.join(name)).collect();
    assert_eq!(ok(world.files().list(dir)), expected);
}

fn metadata_tells_apart(world: &World, dir: &Path) {
    let (files, path) = (world.files(), dir.join("file"));
    assert_eq!(files.metadata(&path), None);
    ok(files.write_atomic(&path, b"four"));
    assert_eq!(files.metadata(&path), Some(FileKind::File { bytes: 4 }));
    assert_eq!(files.metadata(dir), Some(FileKind::Directory));
}

fn rename_moves_and_replaces(world: &World, dir: &Path) {
    let (files, source, target) = (world.files(), dir.join("source"), dir.join("target"));
    ok(files.write_atomic(&source, b"moved"));
    ok(files.write_atomic(&target, b"replaced"));
    ok(files.rename(&source, &target));
    assert_eq!(files.metadata(&source), None);
    assert_eq!(ok(files.read(&target)), b"moved");
    assert!(files.rename(&source, &target).is_err(), "a missing file was renamed");
    assert_eq!(ok(files.read(&target)), b"moved");
}

fn remove_dir_all_removes_all(world: &World, dir: &Path) {
    let (files, folder) = (world.files(), dir.join("a"));
    ok(files.create_dir_all(&folder.join("b").join("c")));
    ok(files.create_dir_all(&folder.join("b")));
    ok(files.write_atomic(&folder.join("b").join("file"), b"x"));
    ok(files.remove_dir_all(&folder));
    assert_eq!(files.metadata(&folder), None);
    assert_eq!(ok(files.list(dir)), Vec::<PathBuf>::new());
}
