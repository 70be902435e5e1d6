//! The test vectors for aligners, `vectors/alignment.json` of the repository; `vectors/README.md` says what they are.
//! Each case is one line, so that no JSON parser is needed.

use vocagno::{Span, TokenRange, align, groups, starts, unmapped_reasons};

/// What stands behind a key of a case. No text contains a key, because its quotation marks would be escaped.
fn behind<'a>(case: &'a str, key: &str) -> &'a str {
    case.split_once(&format!("\"{key}\":")).expect(key).1
}

fn numbers(case: &str, key: &str) -> Vec<i64> {
    let list = behind(case, key).split('"').next().expect(key);
    list.split(|c: char| c != '-' && !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}

fn pairs(case: &str, key: &str) -> Vec<Span<i64>> {
    numbers(case, key).chunks(2).map(|pair| [pair[0], pair[1]]).collect()
}

fn wide(ranges: &[TokenRange]) -> Vec<Span<i64>> {
    ranges.iter().map(|range| range.map(i64::from)).collect()
}

#[test]
fn every_answer_is_the_expected_one() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../vectors/alignment.json");
    let file = std::fs::read_to_string(path).expect(path);
    let cases: Vec<&str> = file.lines().filter(|line| line.contains("\"student_spans\":")).collect();
    assert!(cases.len() > 200, "{path} has {} cases", cases.len());
    for case in cases {
        let (student, teacher) = (pairs(case, "student_spans"), pairs(case, "teacher_spans"));
        if case.contains("\"refused\":") {
            let row = usize::try_from(numbers(case, "refused")[0]).expect("a row");
            assert_eq!(align(&student, &teacher).expect_err(case).index(), Some(row), "{case}");
            continue;
        }
        let mapping = align(&student, &teacher).expect(case);
        let both = groups(&student, &teacher).expect(case);
        let reasons = unmapped_reasons(&student, &teacher, &mapping, None::<&[f32]>).expect(case);
        assert_eq!(wide(&mapping), pairs(case, "ranges"), "{case}");
        assert_eq!(wide(&both.student), pairs(case, "student_groups"), "{case}");
        assert_eq!(wide(&both.teacher), pairs(case, "teacher_groups"), "{case}");
        let rows: Vec<i64> = starts(&student, &teacher).expect(case).into_iter().map(i64::from).collect();
        assert_eq!(rows, numbers(case, "starts"), "{case}");
        let words = behind(case, "reasons").split(']').next().expect(case);
        assert_eq!(
            format!("{reasons:?}").to_lowercase().replace(['"', ' ', ']'], ""),
            words.replace('"', ""),
            "{case}"
        );
    }
}
