//! Saving, loading and hashing of weights, and invalid files.

use std::path::Path;

use lockstep_config::Blame;
use lockstep_platform::{ScratchDir, World};
use safetensors::SafeTensors;

use super::*;

const A: NamedTensor<'static> =
    NamedTensor { name: "a", shape: &[2, 2], data: &[1.0, -2.5, 3e-40, -0.0] };
const B: NamedTensor<'static> = NamedTensor { name: "b", shape: &[1], data: &[7.0] };

struct Fixture {
    world: World,
    scratch: ScratchDir,
}

impl Fixture {
    fn new() -> Self {
        let world = lockstep_platform::real();
        let scratch = ScratchDir::new(&world, "weights").unwrap();
        Self { world, scratch }
    }

    fn path(&self) -> PathBuf {
        self.scratch.path().join(FILE_NAME)
    }

    fn save(&self, tensors: &[NamedTensor<'_>]) {
        save(&self.world, &self.path(), tensors, &BTreeMap::new()).unwrap();
    }

    fn load(&self) -> Result<Weights, CheckpointError> {
        load(&self.world, &self.path())
    }

    fn bytes(&self) -> Vec<u8> {
        self.world.files().read(&self.path()).unwrap()
    }

    /// The one line that reading these bytes gives, without the file's name.
    fn refusal(&self, bytes: &[u8]) -> (String, Blame) {
        // Not synced: this is called for hundreds of files.
        self.world.files().create(&self.path()).unwrap().write_all(bytes).unwrap();
        let error = self.load().unwrap_err();
        let line = error.to_string();
        assert!(!line.contains('\n'), "{line}");
        let name = self.path().display().to_string();
        (line.strip_prefix(&name).expect("the file is named").to_owned(), error.blame())
    }
}

/// A file with this header and this many zero bytes of data.
fn file_with_header(header: &str, data_bytes: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + data_bytes, 0);
    bytes
}

#[test]
fn weights_and_metadata_survive_the_disk_bit_for_bit() {
    let fixture = Fixture::new();
    let notes: BTreeMap<_, _> =
        [("format", "pt"), ("recipe", "é \"x\"")].map(|(k, v)| (k.into(), v.into())).into();
    let large: Vec<f32> = (0..100_003).map(|i| i as f32 * 0.37).collect();
    let large = NamedTensor { name: "large", shape: &[100_003], data: &large };
    let empty = NamedTensor { name: "empty", shape: &[3, 0], data: &[] };
    save(&fixture.world, &fixture.path(), &[large, B, A, empty], &notes).unwrap();

    let loaded = fixture.load().unwrap();
    assert_eq!(loaded.metadata, notes);
    assert_eq!(loaded.tensors.keys().collect::<Vec<_>>(), ["a", "b", "empty", "large"]);
    for tensor in [A, B, large, empty] {
        let data = loaded.tensor(tensor.name, tensor.shape).unwrap();
        let bits = |data: &[f32]| data.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(data), bits(tensor.data), "{}", tensor.name);
    }
}

#[test]
fn equal_weights_give_equal_files_whatever_their_order() {
    let fixture = Fixture::new();
    fixture.save(&[A, B]);
    let first = fixture.bytes();
    fixture.save(&[B, A]);
    assert_eq!(fixture.bytes(), first);
}

#[test]
fn the_formats_own_library_reads_our_files() {
    let fixture = Fixture::new();
    let notes = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    save(&fixture.world, &fixture.path(), &[A, B], &notes).unwrap();
    let bytes = fixture.bytes();
    let read = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(read.len(), 2);
    assert_eq!(read.tensor("a").unwrap().shape(), [2, 2]);
    assert_eq!(read.tensor("b").unwrap().data(), 7.0_f32.to_le_bytes());
    let (header_bytes, _) = SafeTensors::read_metadata(&bytes).unwrap();
    assert_eq!(header_bytes % 8, 0, "the numbers are aligned");
}

#[test]
fn the_hash_is_blake3_of_the_elements_by_sorted_name() {
    let mut expected = blake3::Hasher::new();
    for value in A.data.iter().chain(B.data) {
        expected.update(&value.to_le_bytes());
    }
    let expected = expected.finalize().to_hex().to_string();
    assert_eq!(weights_hash(&[A, B]), expected);
    assert_eq!(weights_hash(&[B, A]), expected);
    let renamed = NamedTensor { name: "0", ..B };
    assert_ne!(weights_hash(&[A, renamed]), expected, "another order of names");
    let zero = NamedTensor { data: &[1.0, -2.5, 3e-40, 0.0], ..A };
    assert_ne!(weights_hash(&[zero, B]), expected, "0 and -0 differ");
}

#[test]
fn weights_that_are_not_finite_are_neither_saved_nor_loaded() {
    let fixture = Fixture::new();
    fixture.save(&[A, B]);
    let good = fixture.bytes();
    let notes = BTreeMap::new();
    for (value, word) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
        fixture.save(&[A, B]);
        let data = [0.0, 0.0, value, 0.0];
        let tensors = [NamedTensor { data: &data, ..A }, B];
        let error = save(&fixture.world, &fixture.path(), &tensors, &notes).unwrap_err();
        let expected = format!("weights not saved: tensor a holds {word} at element 2");
        assert_eq!((error.to_string(), error.blame()), (expected, Blame::Diverged));
        assert_eq!(fixture.bytes(), good, "nothing was overwritten");

        let mut bad = good.clone();
        let element = bad.len() - 3 * 4;
        bad[element..element + 4].copy_from_slice(&value.to_le_bytes());
        let expected = format!(": tensor a holds {word} at element 2");
        assert_eq!(fixture.refusal(&bad), (expected, Blame::User));
    }
}

#[test]
fn a_file_cut_off_anywhere_is_refused() {
    let fixture = Fixture::new();
    fixture.save(&[A, B]);
    let good = fixture.bytes();
    for end in 0..good.len() {
        let (line, blame) = fixture.refusal(&good[..end]);
        assert!(line.starts_with(" is not a whole safetensors file: "), "cut at {end}: {line}");
        assert_eq!(blame, Blame::Storage);
    }
    let longer = [good.as_slice(), &[0]].concat();
    let (line, _) = fixture.refusal(&longer);
    assert!(line.ends_with("its header tells of 20 bytes of data, it has 21"), "{line}");
}

#[test]
fn a_missing_file_and_a_folder_are_named() {
    let fixture = Fixture::new();
    let error = fixture.load().unwrap_err();
    let expected = format!("cannot read {}: no such file", fixture.path().display());
    assert_eq!((error.to_string(), error.blame()), (expected, Blame::User));

    let error = load(&fixture.world, fixture.scratch.path()).unwrap_err();
    assert_eq!(error.blame(), Blame::User);
}

#[test]
fn other_element_types_are_refused() {
    let fixture = Fixture::new();
    let header = r#"{"half":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}}"#;
    let refusal = fixture.refusal(&file_with_header(header, 4));
    let expected = ": tensor half has type F16; only F32 can be loaded".to_owned();
    assert_eq!(refusal, (expected, Blame::User));
}

#[test]
fn sizes_that_overflow_are_refused_before_allocation() {
    let fixture = Fixture::new();
    let huge = 1_u64 << 61;
    let header =
        format!(r#"{{"x":{{"dtype":"F32","shape":[{huge},4],"data_offsets":[0,{}]}}}}"#, u64::MAX);
    fixture.refusal(&file_with_header(&header, 4));

    // Nine tensors, each valid, that together end at the largest integer.
    let size = huge - 1;
    let mut sizes = vec![size; 8];
    sizes.push(7);
    let mut start = 0_u64;
    let mut entries = Vec::new();
    for (index, size) in sizes.into_iter().enumerate() {
        let end = start + size;
        entries.push(format!(
            r#""{index}":{{"dtype":"U8","shape":[{size}],"data_offsets":[{start},{end}]}}"#
        ));
        start = end;
    }
    assert_eq!(start, u64::MAX);
    let (line, _) = fixture.refusal(&file_with_header(&format!("{{{}}}", entries.join(",")), 4));
    assert!(line.ends_with("it has 4"), "{line}");
}

#[test]
fn a_hostile_name_cannot_break_the_line() {
    let fixture = Fixture::new();
    let name = "x\\n\\u001b[2J".to_owned() + &"y".repeat(10_000);
    let header = format!(r#"{{"{name}":{{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}}}"#);
    let (line, _) = fixture.refusal(&file_with_header(&header, 4));
    assert!(line.starts_with(": tensor x  [2Jyyy"), "{line}");
    assert!(line.len() < 300);
}

#[test]
fn a_model_gets_only_tensors_that_fit() {
    let fixture = Fixture::new();
    fixture.save(&[A]);
    let loaded = fixture.load().unwrap();
    let name = fixture.path().display().to_string();
    let missing = loaded.tensor("z", &[1]).unwrap_err();
    assert_eq!(missing.to_string(), format!("{name} has no tensor z"));
    let misshapen = loaded.tensor("a", &[4]).unwrap_err();
    let expected = format!("{name}: tensor a has shape [2, 2], the model needs [4]");
    assert_eq!((misshapen.to_string(), misshapen.blame()), (expected, Blame::User));
}

#[test]
#[should_panic(expected = "two tensors have one name")]
fn two_tensors_of_one_name_are_a_bug() {
    weights_hash(&[A, NamedTensor { name: "a", ..B }]);
}

#[test]
#[should_panic(expected = "tensor b has shape [2]")]
fn a_tensor_that_is_not_as_long_as_its_shape_is_a_bug() {
    let world = lockstep_platform::real();
    let short = NamedTensor { shape: &[2], ..B };
    let _ = save(&world, Path::new("never written"), &[short], &BTreeMap::new());
}
