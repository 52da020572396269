//! Properties of weight files, with a fixed seed for reproducible failures.

use std::collections::BTreeMap;
use std::path::PathBuf;

use lockstep_checkpoint::{NamedTensor, weights};
use lockstep_platform::{ScratchDir, World};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

fn config(cases: u32) -> ProptestConfig {
    let rng_seed = RngSeed::Fixed(1);
    ProptestConfig { cases, rng_seed, failure_persistence: None, ..ProptestConfig::default() }
}

fn world_and_path() -> (World, ScratchDir, PathBuf) {
    let world = lockstep_platform::real();
    let scratch = ScratchDir::new(&world, "props").expect("a scratch folder can be had");
    let path = scratch.path().join(weights::FILE_NAME);
    (world, scratch, path)
}

/// A model: arbitrary names with vectors of arbitrary finite values.
fn models() -> impl Strategy<Value = BTreeMap<String, Vec<f32>>> {
    let finite = any::<u32>().prop_map(f32::from_bits).prop_filter("finite", |x| x.is_finite());
    btree_map(".{1,12}", vec(finite, 0..50), 0..6)
}

fn save(world: &World, path: &std::path::Path, model: &BTreeMap<String, Vec<f32>>) {
    let shapes: Vec<[usize; 1]> = model.values().map(|data| [data.len()]).collect();
    let tensors: Vec<NamedTensor<'_>> = model
        .iter()
        .zip(&shapes)
        .map(|((name, data), shape)| NamedTensor { name, shape, data })
        .collect();
    weights::save(world, path, &tensors, &BTreeMap::new()).expect("finite weights can be saved");
}

/// Loads the bytes, or asserts a one-line error that names the file.
fn load_or_refuse(world: &World, path: &std::path::Path, bytes: &[u8]) {
    let mut file = world.files().create(path).expect("a scratch file can be had");
    file.write_all(bytes).expect("the disk has room");
    drop(file);
    if let Err(error) = weights::load(world, path) {
        let line = error.to_string();
        assert!(!line.contains('\n') && line.contains(&path.display().to_string()), "{line}");
    }
}

proptest! {
    #![proptest_config(config(48))]

    #[test]
    fn saving_then_loading_is_the_identity(model in models()) {
        let (world, _scratch, path) = world_and_path();
        save(&world, &path, &model);
        let loaded = weights::load(&world, &path).expect("what was saved can be loaded");
        prop_assert_eq!(loaded.tensors.len(), model.len());
        for (name, data) in &model {
            let read = loaded.tensor(name, &[data.len()]).expect("it was saved with this shape");
            prop_assert!(read.iter().map(|x| x.to_bits()).eq(data.iter().map(|x| x.to_bits())));
        }
    }

    #[test]
    fn a_damaged_file_is_loaded_or_refused_but_never_panics(
        model in models(),
        damages in vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        num_kept in any::<prop::sample::Index>(),
    ) {
        let (world, _scratch, path) = world_and_path();
        save(&world, &path, &model);
        let mut bytes = world.files().read(&path).expect("it was just saved");
        for (index, byte) in damages {
            let index = index.index(bytes.len());
            bytes[index] = byte;
        }
        load_or_refuse(&world, &path, &bytes);
        bytes.truncate(num_kept.index(bytes.len()));
        load_or_refuse(&world, &path, &bytes);
    }
}

proptest! {
    #![proptest_config(config(400))]

    #[test]
    fn random_bytes_are_refused(bytes in vec(any::<u8>(), 0..200)) {
        let (world, _scratch, path) = world_and_path();
        load_or_refuse(&world, &path, &bytes);
    }

    #[test]
    fn a_header_of_random_numbers_is_loaded_or_refused(
        dtype in prop::sample::select(vec!["F32", "F16", "U8", "F4", "BOOL", "Q9"]),
        shape in vec(prop_oneof![0..5_u64, any::<u64>()], 0..4),
        offsets in (prop_oneof![0..20_u64, any::<u64>()], prop_oneof![0..20_u64, any::<u64>()]),
        data_bytes in 0..20_usize,
    ) {
        let (world, _scratch, path) = world_and_path();
        let (start, end) = offsets;
        let header = format!(
            r#"{{"t":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{start},{end}]}}}}"#
        );
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.resize(bytes.len() + data_bytes, 0);
        load_or_refuse(&world, &path, &bytes);
    }
}
