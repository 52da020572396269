//! Folders that PyTorch and DeepSpeed have written (scripts/interop/pytorch_checkpoints.py), whole
//! and damaged.

use std::path::PathBuf;

use lockstep_platform::ScratchDir;

use super::*;
use crate::huggingface::Folder;

const FOLDERS: [&str; 3] = ["dcp", "deepspeed-zero-2", "deepspeed-zero-3"];

const TABLE: &str = "model.embed_tokens.weight";

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../harness/golden/pytorch").join(name)
}

/// All values of a tensor.
fn read(tensors: &Tensors, name: &str) -> Vec<f32> {
    let mut values = vec![0.0; tensors.shape(name).expect(name).iter().product()];
    tensors.read(name, 0, &mut values).unwrap();
    values
}

/// A copy of a golden folder.
struct Copy {
    world: World,
    scratch: ScratchDir,
}

impl Copy {
    fn of(name: &str) -> Self {
        let world = lockstep_platform::real();
        let scratch = ScratchDir::new(&world, "pytorch").unwrap();
        let copy = Self { world, scratch };
        copy.fill(&golden(name), copy.scratch.path());
        copy
    }

    fn fill(&self, from: &Path, to: &Path) {
        self.world.files().create_dir_all(to).unwrap();
        for path in self.world.files().list(from).unwrap() {
            let target = to.join(path.file_name().unwrap());
            match self.world.files().read(&path) {
                Ok(bytes) => self.world.files().write_atomic(&target, &bytes).unwrap(),
                Err(_) => self.fill(&path, &target),
            }
        }
    }

    /// Replaces a file, reads everything and reports the error.
    fn try_with(&self, file: &str, bytes: &[u8]) -> Result<(), CheckpointError> {
        self.world.files().write_atomic(&self.scratch.path().join(file), bytes).unwrap();
        let folder = Folder::open(&self.world, self.scratch.path())?;
        let state = optimizer_state(&self.world, &folder)?;
        for tensors in [&folder.tensors, &state.tensors] {
            for name in tensors.names() {
                let len = tensors.shape(name).expect(name).iter().product();
                tensors.read(name, 0, &mut vec![0.0; len])?;
            }
        }
        Ok(())
    }

    fn bytes(&self, file: &str) -> Vec<u8> {
        self.world.files().read(&self.scratch.path().join(file)).unwrap()
    }
}

#[test]
fn all_programs_have_stored_the_same_training() {
    let [dcp, zero_2, zero_3] = FOLDERS;
    compare(dcp, zero_2);
    compare(dcp, zero_3);
}

/// Compares weights and moments.
fn compare(ours: &str, theirs: &str) {
    let world = lockstep_platform::real();
    let [a, b] = [ours, theirs].map(|name| Folder::open(&world, &golden(name)).unwrap());
    let [ours, theirs] = [&a, &b].map(|folder| optimizer_state(&world, folder).unwrap());
    assert_eq!((ours.step, theirs.step), (10, 10));
    for (ours, theirs) in [(&a.tensors, &b.tensors), (&ours.tensors, &theirs.tensors)] {
        assert_eq!(ours.names().collect::<Vec<_>>(), theirs.names().collect::<Vec<_>>());
        for name in ours.names() {
            assert_eq!(ours.shape(name), theirs.shape(name));
            let [ours, theirs] = [ours, theirs].map(|tensors| read(tensors, name));
            let most = ours.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
            assert!(most > 0.0, "{name} is zero");
            for (ours, theirs) in ours.iter().zip(&theirs) {
                assert!((ours - theirs).abs() <= 1e-5 * most, "{name}: {ours} and {theirs}");
            }
        }
    }
}

#[test]
fn any_range_of_a_tensor_is_read() {
    let world = lockstep_platform::real();
    for name in FOLDERS {
        let tensors = Folder::open(&world, &golden(name)).unwrap().tensors;
        let all = read(&tensors, TABLE);
        for first in [0, 1, 7, 1000, all.len() - 1] {
            for len in [1, 2, 900, all.len()] {
                let mut part = vec![0.0; len.min(all.len() - first)];
                tensors.read(TABLE, first, &mut part).unwrap();
                assert_eq!(part, all[first..first + part.len()], "{name}: {first}, {len}");
            }
        }
    }
}

#[test]
fn damaged_bytes_give_one_line_and_no_panic() {
    let files = [
        ("dcp", ".metadata"),
        ("dcp", "__0_0.distcp"),
        ("deepspeed-zero-2", "global_step10/mp_rank_00_model_states.pt"),
        ("deepspeed-zero-2", "global_step10/zero_pp_rank_1_mp_rank_00_optim_states.pt"),
    ];
    for (folder, file) in files {
        let copy = Copy::of(folder);
        let whole = copy.bytes(file);
        copy.try_with(file, &whole).unwrap();
        for len in [0, 1, whole.len() / 3, whole.len() / 2, whole.len() - 1] {
            let error = copy.try_with(file, &whole[..len]).unwrap_err().to_string();
            assert_eq!(error.lines().count(), 1, "{error}");
        }
        let mut bytes = whole;
        for place in (0..bytes.len()).step_by(bytes.len() / 30) {
            bytes[place] ^= 0xff;
            if let Err(error) = copy.try_with(file, &bytes) {
                assert_eq!(error.to_string().lines().count(), 1, "{error}");
            }
            bytes[place] ^= 0xff;
        }
    }
}

#[test]
fn names_that_lead_out_of_the_folder_are_refused() {
    let copy = Copy::of("dcp");
    let mut bytes = copy.bytes(".metadata");
    let name = b"__0_0.distcp";
    let at = bytes.windows(name.len()).position(|part| part == name).unwrap();
    bytes[at..at + name.len()].copy_from_slice(b"../../passwd");
    let error = copy.try_with(".metadata", &bytes).unwrap_err().to_string();
    assert!(error.contains("is not the name of a file in it"), "{error}");
}

#[test]
fn missing_parts_are_named() {
    let copy = Copy::of("deepspeed-zero-2");
    let part = "global_step10/zero_pp_rank_0_mp_rank_00_optim_states.pt";
    copy.world.files().remove_file(&copy.scratch.path().join(part)).unwrap();
    let error = Folder::open(&copy.world, copy.scratch.path()).err().unwrap().to_string();
    assert!(error.contains("are not complete"), "{error}");
}

fn megatron(name: &str) -> PathBuf {
    golden("../megatron").join(name)
}

#[test]
fn weights_of_megatron_are_those_of_the_folder_of_transformers() {
    let world = lockstep_platform::real();
    let expected = Folder::open(&world, &megatron("hf")).unwrap();
    for name in ["stacked", "by-layer"] {
        let found = Folder::open(&world, &megatron(name)).unwrap();
        let names: Vec<_> = expected.tensors.names().collect();
        assert_eq!(found.tensors.names().collect::<Vec<_>>(), names, "{name}");
        for tensor in names {
            assert_eq!(found.tensors.shape(tensor), expected.tensors.shape(tensor), "{tensor}");
            let [ours, theirs] = [&found, &expected].map(|folder| read(&folder.tensors, tensor));
            assert_eq!(ours, theirs, "{name}: {tensor}");
            // Parts that begin and end inside of a group of heads.
            let mut part = vec![0.0; ours.len() - 8];
            found.tensors.read(tensor, 5, &mut part).unwrap();
            assert_eq!(part, ours[5..ours.len() - 3], "{name}: part of {tensor}");
        }
        let error = optimizer_state(&world, &found).err().expect("no state").to_string();
        assert!(error.contains("optimizer state of Megatron-Core is not read"), "{error}");
    }
}

#[test]
fn a_model_that_megatron_has_not_saved_is_refused() {
    let world = lockstep_platform::real();
    let scratch = ScratchDir::new(&world, "megatron").unwrap();
    let text = world.files().read_to_string(&megatron("stacked").join("config.json")).unwrap();
    let copy = Copy { world, scratch };
    copy.fill(&megatron("stacked"), copy.scratch.path());
    let refusal = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        let changed = text.replace(from, to);
        let path = copy.scratch.path().join("config.json");
        copy.world.files().write_atomic(&path, changed.as_bytes()).unwrap();
        Folder::open(&copy.world, copy.scratch.path()).err().expect(to).to_string()
    };
    let layers = refusal("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3");
    assert!(layers.contains("the model needs [3, "), "{layers}");
    let heads = refusal("\"num_key_value_heads\": 2", "\"num_key_value_heads\": 4");
    assert!(heads.contains("linear_qkv.weight has shape [2, 32, 16]"), "{heads}");
    let vocab = refusal("\"vocab_size\": 260", "\"vocab_size\": 300");
    assert!(vocab.contains("the model needs [300, 16]"), "{vocab}");
    let file = copy.scratch.path().join("latest_checkpointed_iteration.txt");
    copy.world.files().write_atomic(&file, b"7").unwrap();
    let missing = refusal("\"vocab_size\": 260", "\"vocab_size\": 261");
    assert!(missing.contains("--ckpt-format torch_dist"), "{missing}");
}
