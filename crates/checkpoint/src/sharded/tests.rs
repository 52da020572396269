//! Guarantees of the store: any layout, atomicity, one attempt at a time.

use std::path::Path;
use std::time::Duration;

use lockstep_config::Blame;
use lockstep_platform::faults::{FaultyPlatform, PowerCut};
use lockstep_platform::{FileKind, ScratchDir, World};

use super::*;
use crate::CheckpointError;

/// Elements of two tensors after a number of steps.
fn values(step: u64) -> [(&'static str, Vec<usize>, Vec<f32>); 2] {
    let fill = |len: usize, scale: f32| (0..len).map(|i| scale * i as f32 + step as f32).collect();
    [("a.weight", vec![5, 4], fill(20, 0.5)), ("b.weight", vec![7], fill(7, -1.0))]
}

/// Snapshot of one of `num_ranks` ranks.
fn snapshot(step: u64, rank: usize, num_ranks: usize) -> Snapshot {
    let mut snapshot = Snapshot::default();
    for (name, shape, data) in values(step) {
        let cut = |rank: usize| data.len() * rank / num_ranks;
        snapshot.add(name, &shape, cut(rank), &data[cut(rank)..cut(rank + 1)]);
    }
    if rank == 0 {
        snapshot.set_losses(&[5.5, f64::NAN, 0.1 + 0.2]);
    }
    snapshot
}

fn commit(step: u64, keep: usize) -> Commit {
    let position = Position { step, recipe: "[train]\n".to_owned(), ..Position::default() };
    Commit { position, timeout: Duration::from_secs(5), keep }
}

/// Saves a checkpoint as `num_ranks` ranks of a new attempt.
fn save(
    world: &World,
    dir: &Path,
    step: u64,
    num_ranks: usize,
    keep: usize,
) -> Result<(), CheckpointError> {
    let store = Store::new(world, dir);
    let generation = store.take_over()?;
    for rank in (0..num_ranks).rev() {
        store.writer(generation, rank).write(step, &snapshot(step, rank, num_ranks))?;
    }
    store.writer(generation, 0).commit(num_ranks, commit(step, keep))
}

fn assert_holds(reader: &Reader, step: u64) {
    for (name, shape, data) in values(step) {
        for (first, end) in [(0, data.len()), (1, data.len() - 1), (3, 4), (2, 2)] {
            let mut out = vec![f32::NAN; end - first];
            reader.read(name, &shape, first, &mut out).unwrap();
            assert_eq!(out, data[first..end], "{name} from {first} to {end}");
        }
    }
    let losses: Vec<u64> = reader.losses().unwrap().iter().map(|loss| loss.to_bits()).collect();
    assert_eq!(losses, [5.5_f64, f64::NAN, 0.1 + 0.2].map(f64::to_bits));
}

fn in_scratch(test: impl FnOnce(&World, &Path)) {
    let world = lockstep_platform::real();
    let scratch = ScratchDir::new(&world, "sharded").unwrap();
    test(&world, &scratch.path().join("checkpoints"));
}

#[test]
fn any_range_is_read_from_any_number_of_shards() {
    for num_ranks in [1, 2, 3, 5, 30] {
        in_scratch(|world, dir| {
            save(world, dir, 8, num_ranks, 1).unwrap();
            let reader = Store::new(world, dir).open(8).unwrap();
            reader.verify_all().unwrap();
            assert_eq!(reader.manifest().files.len(), num_ranks);
            assert_holds(&reader, 8);
        });
    }
}

#[test]
fn column_shards_are_one_piece_each_and_any_range_of_them_is_read() {
    in_scratch(|world, dir| {
        // 11 rows of 12 columns; three workers with 5, 4 and 3 of them, the second cut in two in
        // the middle of a row.
        let data: Vec<f32> = (0..132).map(|i| i as f32 * 0.25).collect();
        let store = Store::new(world, dir);
        let generation = store.take_over().unwrap();
        let shards: [(usize, usize, &[usize]); 3] = [(0, 5, &[]), (5, 4, &[18]), (9, 3, &[])];
        for (rank, (first, width, cuts)) in shards.into_iter().enumerate() {
            let mut snapshot = Snapshot::default();
            let mut done = 0;
            for row in 0..11 {
                let mut column = 0;
                while column < width {
                    let cut = cuts.iter().find(|cut| **cut > done).map_or(usize::MAX, |cut| *cut);
                    let len = (width - column).min(cut - done);
                    let place = row * 12 + first + column;
                    snapshot.add("w", &[11, 12], place, &data[place..place + len]);
                    (column, done) = (column + len, done + len);
                }
            }
            store.writer(generation, rank).write(3, &snapshot).unwrap();
        }
        store.writer(generation, 0).commit(3, commit(3, 1)).unwrap();
        let reader = store.open(3).unwrap();
        let pieces = &reader.manifest().tensors["w"].pieces;
        assert!(pieces.len() <= 6, "{pieces:?}");
        for first in 0..132 {
            for end in first..=132 {
                let mut out = vec![f32::NAN; end - first];
                reader.read("w", &[11, 12], first, &mut out).unwrap();
                assert_eq!(out, data[first..end], "from {first} to {end}");
            }
        }
    });
}

#[test]
fn the_first_non_finite_value_is_reported() {
    // Columns 3 to 8 of 20,000 rows of ten: more than one block of the check.
    for (row, column) in [(0, 3), (13_107, 4), (19_999, 7)] {
        in_scratch(|world, dir| {
            let mut snapshot = Snapshot::default();
            snapshot.add("a", &[3], 0, &[1.0, 2.0, 3.0]);
            for place in 0..20_000 {
                let mut values = [0.5; 5];
                if place >= row {
                    values[column - 3] = f32::NEG_INFINITY;
                }
                snapshot.add("w", &[20_000, 10], place * 10 + 3, &values);
            }
            let store = Store::new(world, dir);
            for is_packed in [false, true] {
                let writer = store.writer(store.take_over().unwrap(), 0).packing(is_packed);
                let error = writer.write(3, &snapshot).expect_err("it has diverged");
                let (tensor, value) = ("w".to_owned(), "-inf".to_owned());
                let element = row * 10 + column;
                assert_eq!(error, CheckpointError::Diverged { tensor, element, value });
            }
        });
    }
}

#[test]
fn compressed_shards_are_read_back_and_are_plain_zstd() {
    in_scratch(|world, dir| {
        // More than two frames.
        let data: Vec<f32> = (0..700_000).map(|i| (i % 1000) as f32).collect();
        let mut snapshot = Snapshot::default();
        snapshot.add("w", &[700_000], 0, &data);
        snapshot.set_losses(&[0.5, f64::NAN]);
        let store = Store::new(world, dir);
        let writer = store.writer(store.take_over().unwrap(), 0).packing(true);
        writer.write(3, &snapshot).unwrap();
        writer.commit(1, commit(3, 1)).unwrap();
        let reader = store.open(3).unwrap();
        reader.verify_all().unwrap();
        let file = &reader.manifest().files[0];
        assert!(file.bytes < file.plain_bytes() / 2, "{file:?}");
        assert_eq!(file.packed.as_ref().unwrap().ends.len(), 3);
        for (first, len) in [(0, 700_000), (262_000, 300), (699_999, 1), (524_280, 9), (5, 0)] {
            let mut out = vec![f32::NAN; len];
            reader.read("w", &[700_000], first, &mut out).unwrap();
            assert_eq!(out, data[first..first + len], "from {first}");
        }
        assert!(reader.losses().unwrap()[1].is_nan());
        let packed = world.files().read(&store.folder(3).join("rank-0000.safetensors.zst"));
        let plain = zstd::decode_all(&packed.unwrap()[..]).unwrap();
        let file = safetensors::SafeTensors::deserialize(&plain).unwrap();
        assert_eq!(file.tensor("w@0").unwrap().shape(), [700_000]);
    });
}

#[test]
fn a_rank_that_cannot_write_reports_it_and_leaves_nothing() {
    in_scratch(|world, dir| {
        save(world, dir, 2, 2, 1).unwrap();
        let store = Store::new(world, dir);
        let generation = store.take_over().unwrap();
        // Its file has the name of a folder that is not empty.
        let partial = dir.join(format!(".step-00000004.g{generation}.partial"));
        world.files().create_dir_all(&partial.join("rank-0001.safetensors").join("x")).unwrap();
        let error = store.writer(generation, 1).write(4, &snapshot(4, 1, 2)).expect_err("taken");
        assert_eq!(error.blame(), Blame::Storage, "{error}");
        let writer = store.writer(generation, 0);
        writer.write(4, &snapshot(4, 0, 2)).unwrap();
        // The commit fails at once with the reason, without waiting for the timeout.
        let patient = Commit { timeout: Duration::from_mins(10), ..commit(4, 1) };
        let error = writer.commit(2, patient).expect_err("one shard is missing").to_string();
        assert!(error.contains("rank 1 could not write its shard: cannot"), "{error}");
        assert!(error.ends_with("step-00000002"), "it names the newest checkpoint: {error}");
        assert_eq!(world.files().metadata(&partial), None, "the hidden folder is gone");
        assert_holds(&store.open(2).unwrap(), 2);
    });
}

#[test]
fn a_checkpoint_that_the_committing_rank_cannot_write_is_removed() {
    in_scratch(|world, dir| {
        let store = Store::new(world, dir);
        let generation = store.take_over().unwrap();
        let partial = dir.join(format!(".step-00000004.g{generation}.partial"));
        world.files().create_dir_all(&partial.join("rank-0000.safetensors").join("x")).unwrap();
        store.writer(generation, 0).write(4, &snapshot(4, 0, 2)).expect_err("taken");
        store.writer(generation, 1).write(4, &snapshot(4, 1, 2)).unwrap();
        store.writer(generation, 0).abandon(4, 2);
        assert_eq!(world.files().metadata(&partial), None);
    });
}

#[test]
fn shards_are_plain_safetensors_files() {
    in_scratch(|world, dir| {
        save(world, dir, 8, 2, 1).unwrap();
        let path = dir.join("step-00000008").join("rank-0001.safetensors");
        let bytes = world.files().read(&path).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let mut names = file.names();
        names.sort_unstable();
        assert_eq!(names, ["a.weight@10", "b.weight@3"]);
    });
}

#[test]
fn the_newest_checkpoints_are_kept() {
    in_scratch(|world, dir| {
        for step in [2, 4, 6, 8] {
            save(world, dir, step, 2, 2).unwrap();
        }
        assert_eq!(Store::new(world, dir).steps().unwrap(), [8, 6]);
        let names = world.files().list(dir).unwrap();
        assert_eq!(names.len(), 3, "two checkpoints and the generation: {names:?}");
    });
}

#[test]
fn a_flipped_bit_or_a_truncation_is_detected_in_every_file() {
    in_scratch(|world, dir| {
        save(world, dir, 8, 2, 1).unwrap();
        let store = Store::new(world, dir);
        let verify = || store.open(8).and_then(|reader| reader.verify_all());
        verify().unwrap();
        for path in world.files().list(&store.folder(8)).unwrap() {
            let whole = world.files().read(&path).unwrap();
            for at in (0..whole.len()).step_by(5) {
                let mut flipped = whole.clone();
                flipped[at] ^= 4;
                for bytes in [&flipped[..], &whole[..at]] {
                    world.files().write_atomic(&path, bytes).unwrap();
                    let error = verify().expect_err("it was changed");
                    // The only other outcome is a version that a flip has raised.
                    let is_newer = matches!(error, CheckpointError::NewerState { .. });
                    assert!(is_newer || error.blame() == Blame::Storage, "{error}");
                    assert!(!error.to_string().contains('\n'), "{error}");
                }
            }
            world.files().write_atomic(&path, &whole).unwrap();
        }
        verify().unwrap();
    });
}

#[test]
fn an_inconsistent_manifest_is_refused_before_anything_is_read() {
    in_scratch(|world, dir| {
        save(world, dir, 8, 2, 1).unwrap();
        let folder = Store::new(world, dir).folder(8);
        let valid = Manifest::load(world, &folder).unwrap();
        let faults: [fn(&mut Manifest); 10] = [
            |m| {
                let pieces = &mut m.tensors.get_mut("b.weight").unwrap().pieces;
                pieces.push(Piece { rows: 0, ..pieces[0].clone() });
            },
            |m| m.tensors.get_mut("b.weight").unwrap().pieces[0].rows = usize::MAX,
            |m| m.tensors.get_mut("b.weight").unwrap().pieces[0].len = 0,
            |m| {
                let piece = &mut m.tensors.get_mut("b.weight").unwrap().pieces[0];
                (piece.rows, piece.len, piece.stride) = (piece.len, 1, usize::MAX);
            },
            |m| {
                let (plain_bytes, ends) = (u64::MAX, vec![m.files[0].bytes]);
                m.files[0].name += ".zst";
                m.files[0].packed = Some(ZstdFrames { plain_bytes, frame_bytes: 1 << 20, ends });
            },
            |m| m.files[0].name = "../../secret".to_owned(),
            |m| m.tensors.get_mut("b.weight").unwrap().pieces[0].offset = u64::MAX,
            |m| m.tensors.get_mut("b.weight").unwrap().pieces[1].first -= 1,
            |m| m.tensors.get_mut("b.weight").unwrap().shape = vec![usize::MAX, 2],
            |m| m.losses.len = usize::MAX,
        ];
        for fault in faults {
            let mut manifest = valid.clone();
            fault(&mut manifest);
            world.files().write_atomic(&folder.join(MANIFEST), manifest.text().as_bytes()).unwrap();
            let error = Reader::open(world, &folder).map(|_| ()).expect_err("it is inconsistent");
            assert!(matches!(error, CheckpointError::BadCheckpoint { .. }), "{error}");
        }
    });
}

#[test]
fn a_small_manifest_of_a_huge_checkpoint_takes_no_memory() {
    in_scratch(|world, dir| {
        save(world, dir, 8, 1, 1).unwrap();
        let folder = Store::new(world, dir).folder(8);
        let valid = Manifest::load(world, &folder).unwrap();
        let store = |manifest: &Manifest| {
            let text = manifest.text();
            world.files().write_atomic(&folder.join(MANIFEST), text.as_bytes()).unwrap();
        };
        // One tensor of 2^40 ranges of one element each, in a file that would be 4 TiB long.
        let mut manifest = valid.clone();
        let tensor = manifest.tensors.get_mut("b.weight").unwrap();
        (tensor.shape, tensor.pieces[0].len) = (vec![1 << 40], 1);
        (tensor.pieces[0].rows, tensor.pieces[0].stride) = (1 << 40, 1);
        manifest.files[0].bytes = 1 << 43;
        store(&manifest);
        let error = Reader::open(world, &folder).map(|_| ()).expect_err("the file is shorter");
        assert!(error.to_string().contains("bytes, not 8796093022208"), "{error}");

        // Frames of 1 MiB each that hold nothing, and 256 GiB of losses in them.
        let mut manifest = valid.clone();
        let (plain_bytes, frame_bytes) = (1 << 38, 1 << 20);
        let old = manifest.files[0].name.clone();
        manifest.files[0].name += ".zst";
        let (from, to) = (folder.join(old), folder.join(&manifest.files[0].name));
        world.files().rename(&from, &to).unwrap();
        let mut ends = vec![0; 1 << 18];
        *ends.last_mut().unwrap() = manifest.files[0].bytes;
        manifest.files[0].packed = Some(ZstdFrames { plain_bytes, frame_bytes, ends });
        (manifest.losses.offset, manifest.losses.len) = (0, 1 << 35);
        store(&manifest);
        let error = Reader::open(world, &folder).unwrap().losses().expect_err("there are none");
        assert!(error.to_string().contains("does not unpack"), "{error}");
    });
}

#[test]
fn an_attempt_takes_over_while_the_last_one_commits() {
    // The last attempt renames its folder before each operation of the new one in turn.
    for operation in 0.. {
        let is_over = std::cell::Cell::new(false);
        in_scratch(|world, dir| {
            let store = Store::new(world, dir);
            let old = store.take_over().unwrap();
            store.writer(old, 0).write(4, &snapshot(4, 0, 1)).unwrap();
            let (inner, last) = (world.clone(), store.writer(old, 0));
            let at_once = Commit { timeout: Duration::ZERO, ..commit(4, 1) };
            let commit = move || drop(last.commit(1, at_once.clone()));
            let racing = FaultyPlatform::interrupted(&inner, operation, commit);
            let new = Store::new(&(racing.clone() as World), dir).take_over().unwrap();
            assert_eq!(new, old + 1, "operation {operation}");
            // A checkpoint is whole or absent, and nothing else is left.
            let steps = store.steps().unwrap();
            for &step in &steps {
                assert_holds(&store.open(step).unwrap(), step);
            }
            assert_eq!(world.files().list(dir).unwrap().len(), 1 + steps.len());
            is_over.set(racing.num_operations() <= operation);
        });
        if is_over.get() {
            assert!(operation > 4, "a generation file, and the removal of a folder");
            return;
        }
    }
}

#[test]
fn a_replaced_attempt_can_neither_write_nor_commit() {
    in_scratch(|world, dir| {
        let store = Store::new(world, dir);
        let old = store.take_over().unwrap();
        store.writer(old, 0).write(4, &snapshot(4, 0, 1)).unwrap();
        let new = store.take_over().unwrap();
        assert_eq!((old, new), (1, 2));
        // Its unfinished checkpoint is removed, and a new one is refused.
        let error = store.writer(old, 0).commit(1, commit(4, 1)).expect_err("too late");
        assert_eq!(error.blame(), Blame::Storage, "{error}");
        let error = store.writer(old, 0).write(6, &snapshot(6, 0, 1)).expect_err("replaced");
        assert_eq!(error, CheckpointError::Superseded { generation: 1, newer: 2 });
        assert_eq!(store.steps().unwrap(), [0; 0]);
        assert_eq!(world.files().list(dir).unwrap().len(), 1, "only the generation file remains");
        store.writer(new, 0).write(6, &snapshot(6, 0, 1)).unwrap();
        store.writer(new, 0).commit(1, commit(6, 1)).unwrap();
        assert_holds(&store.open(6).unwrap(), 6);
    });
}

#[test]
fn a_rank_that_does_not_write_is_reported_and_older_checkpoints_remain() {
    in_scratch(|world, dir| {
        save(world, dir, 2, 2, 1).unwrap();
        let store = Store::new(world, dir);
        let writer = store.writer(store.take_over().unwrap(), 0);
        writer.write(4, &snapshot(4, 0, 2)).unwrap();
        let hurried = Commit { timeout: Duration::ZERO, ..commit(4, 1) };
        let error = writer.commit(2, hurried).expect_err("rank 1 is missing").to_string();
        assert!(error.contains("rank 1 did not write its shard within 0 s"), "{error}");
        assert!(error.ends_with("step-00000002"), "it names the newest checkpoint: {error}");
        assert_holds(&store.open(2).unwrap(), 2);
    });
}

#[test]
fn saving_a_step_twice_replaces_a_damaged_checkpoint() {
    in_scratch(|world, dir| {
        save(world, dir, 2, 2, 3).unwrap();
        let path = dir.join("step-00000002").join("rank-0000.safetensors");
        let mut bytes = world.files().read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        world.files().write_atomic(&path, &bytes).unwrap();
        save(world, dir, 2, 1, 3).unwrap();
        let reader = Store::new(world, dir).open(2).unwrap();
        reader.verify_all().unwrap();
        assert_eq!(reader.manifest().files.len(), 1, "it is the new one");
        save(world, dir, 2, 2, 3).unwrap();
        assert_eq!(Store::new(world, dir).open(2).unwrap().manifest().files.len(), 1);
    });
}

/// The newest valid checkpoint.
fn newest(world: &World, dir: &Path) -> Option<u64> {
    let store = Store::new(world, dir);
    let is_valid = |step: &u64| store.open(*step).and_then(|r| r.verify_all()).is_ok();
    let steps = store.steps().unwrap();
    steps.into_iter().find(is_valid)
}

#[test]
fn a_complete_checkpoint_survives_a_power_failure_at_any_operation() {
    let real = lockstep_platform::real();
    // This platform only tracks what was synced, which is faster.
    let lit: World = FaultyPlatform::new(&real, None);
    let mut num_cuts = 0;
    for operation in 0.. {
        let mut is_over = true;
        for is_done in [false, true] {
            let scratch = ScratchDir::new(&real, "power").unwrap();
            let dir = scratch.path().join("checkpoints");
            save(&lit, &dir, 2, 2, 1).unwrap();
            let faulty = FaultyPlatform::new(&real, Some(PowerCut { operation, is_done }));
            let world: World = faulty.clone();
            // Two more, so that older ones are removed as well.
            let saved = save(&world, &dir, 4, 3, 1).and_then(|()| save(&world, &dir, 6, 2, 1));
            assert_eq!(saved.is_err(), faulty.is_power_off(), "operation {operation}");
            let step = newest(&real, &dir).unwrap_or_else(|| panic!("none left: {operation}"));
            assert!(saved.is_err() || step == 6);
            assert_holds(&Store::new(&real, &dir).open(step).unwrap(), step);
            // The next attempt continues normally.
            save(&lit, &dir, 8, 2, 1).unwrap();
            assert_eq!(newest(&real, &dir), Some(8));
            let names = real.files().list(&dir).unwrap();
            assert!(names.len() == 2, "leftovers after operation {operation}: {names:?}");
            is_over &= !faulty.is_power_off();
            num_cuts += 1;
        }
        if is_over {
            break;
        }
    }
    assert!(num_cuts > 80, "every operation was cut: {num_cuts}");
}

#[test]
fn a_folder_that_cannot_be_written_is_a_one_line_storage_error() {
    in_scratch(|world, dir| {
        world.files().create_dir_all(dir.parent().unwrap()).unwrap();
        world.files().write_atomic(dir, b"a file in its place").unwrap();
        let store = Store::new(world, dir);
        let error = store.writer(1, 0).write(4, &snapshot(4, 0, 1)).expect_err("no folder");
        assert_eq!(error.blame(), Blame::Storage);
        assert!(error.to_string().starts_with("the checkpoint of step 4 was not written: cannot"));
        assert!(matches!(world.files().metadata(dir), Some(FileKind::File { .. })));
    });
}
