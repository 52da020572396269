//! The list of product algorithms that a run keeps.

use lockstep_tensor::internals::reread_algorithms as reread;

const SOURCE: &str = "cuBLASLt 13.0.2, compute capability 9.0";
const WITHOUT: &str = "7x96x320 bf16 f32 320 96 128 nt 256 16 4 164 =";
const WITH: &str =
    "64x96x320 bf16 f32 320 96 128 nt 256 16 4 164 = ffffffffffffffff 0 1 2 3 4 5 2a 2000000";

/// A product in fp8: a gradient times a weight.
const OF_FP8: &str = "64x96x320 fp8-gw f32 320 320 96 nt 256 256 256 1 =";

#[test]
fn a_list_is_read_as_it_was_written_and_sorted_by_product() {
    let list = format!("{SOURCE}\n{WITHOUT}\n{WITH}\n{OF_FP8}\n");
    assert_eq!(reread(SOURCE, &list), Ok(list.clone()));
    assert_eq!(reread(SOURCE, &format!("{SOURCE}\n{OF_FP8}\n{WITH}\n{WITHOUT}\n")), Ok(list));
    for empty in ["", SOURCE] {
        assert_eq!(reread(SOURCE, empty), Ok(format!("{SOURCE}\n")));
    }
}

#[test]
fn a_list_of_another_library_or_device_is_refused_with_advice() {
    for other in ["cuBLASLt 12.9.1, compute capability 9.0", "x"] {
        let error = reread(SOURCE, &format!("{other}\n{WITH}\n")).unwrap_err().to_string();
        assert_eq!(
            error,
            format!(
                "stored algorithms of products: they are those of {other:?}, but this is \
                 {SOURCE:?}; resume with that library and device, or start a new run from the \
                 weights"
            )
        );
    }
    let long = reread(SOURCE, &"x".repeat(1 << 20)).unwrap_err().to_string();
    assert!(long.len() < 300, "{} bytes", long.len());
}

#[test]
fn a_damaged_line_is_refused_by_its_number() {
    for damaged in [
        String::new(),
        WITH[..WITH.len() - 20].to_owned(),
        format!("{WITH} 0"),
        WITH.replace(" = ", " "),
        WITH.replace("64x96", "64x-96"),
        WITH.replace("64x96x320", "64x96"),
        WITH.replace("bf16", "f64"),
        OF_FP8.replace("gw", "gx"),
        WITH.replace("nt", "nx"),
        WITH.replace("2000000", "2000001"),
        WITH.replace("ffffffffffffffff", "1ffffffffffffffff"),
        WITH.replace(" 164", " 4294967296"),
    ] {
        let error = reread(SOURCE, &format!("{SOURCE}\n{WITH}\n{damaged}\n")).unwrap_err();
        let error = error.to_string();
        assert!(error.ends_with("line 3 of the list is damaged"), "{damaged}: {error}");
    }
    let twice = format!("{SOURCE}\n{WITH}\n{WITH}\n");
    assert!(reread(SOURCE, &twice).is_err(), "a product has one algorithm");
}
