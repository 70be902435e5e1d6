//! Every function against an obvious oracle, or against what must hold of any result. `PROPTEST_CASES` sets
//! the number of cases.

use proptest::prelude::*;
use proptest::sample::select;
use vocagno::{
    DummyPrefix, PieceTable, Range, Reason, Reduction, Span, SpanError, TokenKind, UNMAPPED, align, align_batch,
    align_into, chars_to_bytes, close, close_batch, reduce, spans_from_ids, spans_from_ids_batch, unmapped_reasons,
};

// ---- oracles

/// Algorithm 1 word by word, O(N * M).
fn align_oracle(student: &[Span<i64>], teacher: &[Span<i64>]) -> Vec<Range> {
    let overlaps = |a: &Span<i64>, b: &Span<i64>| a[0] < a[1] && b[0] < b[1] && a[0] < b[1] && b[0] < a[1];
    let range = |span: &Span<i64>| {
        let first = teacher.iter().position(|other| overlaps(span, other));
        let last = teacher.iter().rposition(|other| overlaps(span, other));
        first.zip(last).map_or(UNMAPPED, |(first, last)| [index(first), index(last) + 1])
    };
    student.iter().map(range).collect()
}

/// The first non-empty teacher span that is out of order.
fn unsorted_oracle(teacher: &[Span<i64>]) -> Option<usize> {
    let filled: Vec<usize> = (0..teacher.len()).filter(|&at| teacher[at][0] < teacher[at][1]).collect();
    let decreases = |pair: &&[usize]| (0..2).any(|end| teacher[pair[1]][end] < teacher[pair[0]][end]);
    filled.windows(2).find(decreases).map(|pair| pair[1])
}

fn index(value: usize) -> i32 {
    i32::try_from(value).expect("small")
}

fn boundaries(lengths: impl Iterator<Item = usize>) -> Vec<i64> {
    let mut sum = 0;
    let ends = lengths.map(|length| {
        sum += i64::try_from(length).expect("small");
        sum
    });
    [0].into_iter().chain(ends).collect()
}

// ---- generated spans

/// Spans in order: gapped, repeated or nested, with empty ones anywhere.
fn sorted_spans() -> impl Strategy<Value = Vec<Span<i64>>> {
    let step = (0..3_i64, 0..3_i64, 0..4_i64, any::<bool>());
    prop::collection::vec(step, 0..24).prop_map(|steps| {
        let (mut start, mut end) = (0, 0);
        let mut spans = Vec::new();
        for (start_step, end_step, empty, is_empty) in steps {
            if is_empty && empty > 1 {
                spans.push(if empty == 2 { [0, 0] } else { [end + 1, start] });
            } else {
                (start, end) = (start + start_step, (end + end_step).max(start + start_step + 1));
                spans.push([start, end]);
            }
        }
        spans
    })
}

fn any_spans() -> impl Strategy<Value = Vec<Span<i64>>> {
    prop::collection::vec([-2..40_i64, -2..40_i64], 0..24)
}

fn student_spans() -> impl Strategy<Value = Vec<Span<i64>>> {
    prop_oneof![sorted_spans(), any_spans()]
}

proptest! {
    #[test]
    fn align_is_algorithm_1(student in student_spans(), teacher in sorted_spans()) {
        let mapping = align(&student, &teacher);
        prop_assert_eq!(&mapping, &Ok(align_oracle(&student, &teacher)));
        let narrow = |spans: &[Span<i64>]| -> Vec<Span<i32>> {
            spans.iter().map(|span| span.map(|offset| i32::try_from(offset).expect("small"))).collect()
        };
        prop_assert_eq!(align(&narrow(&student), &narrow(&teacher)), mapping);
    }

    #[test]
    fn align_refuses_exactly_what_is_out_of_order(student in any_spans(), teacher in any_spans()) {
        match (align(&student, &teacher), unsorted_oracle(&teacher)) {
            (Ok(mapping), None) => prop_assert_eq!(mapping, align_oracle(&student, &teacher)),
            (Err(SpanError::Unsorted { token, span, .. }), Some(expected)) => {
                prop_assert_eq!((token, span), (expected, teacher[expected]));
            }
            (result, expected) => prop_assert!(false, "{result:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn align_takes_any_offsets(student in prop::collection::vec(any::<[i64; 2]>(), 0..9), mut teacher in prop::collection::vec(any::<[i64; 2]>(), 0..9)) {
        teacher.sort_unstable();
        if unsorted_oracle(&teacher).is_none() {
            prop_assert_eq!(align(&student, &teacher), Ok(align_oracle(&student, &teacher)));
        }
    }

    #[test]
    fn a_batch_is_its_rows(rows in prop::collection::vec((student_spans(), sorted_spans()), 0..6)) {
        let student_cu = boundaries(rows.iter().map(|(student, _)| student.len()));
        let teacher_cu = boundaries(rows.iter().map(|(_, teacher)| teacher.len()));
        let student: Vec<_> = rows.iter().flat_map(|(student, _)| student.clone()).collect();
        let teacher: Vec<_> = rows.iter().flat_map(|(_, teacher)| teacher.clone()).collect();
        let mut batch = vec![[7; 2]; student.len()];
        align_batch(&student, &student_cu, &teacher, &teacher_cu, &mut batch)?;
        let mut expected = Vec::new();
        for ((student, teacher), &base) in rows.iter().zip(&teacher_cu) {
            let base = i32::try_from(base).expect("small");
            let flat = |range: Range| if range == UNMAPPED { range } else { range.map(|row| row + base) };
            expected.extend(align(student, teacher)?.into_iter().map(flat));
        }
        prop_assert_eq!(batch, expected);
    }

    #[test]
    fn reduce_folds_the_finite_losses(losses in losses(), picks in prop::collection::vec(any::<[prop::sample::Index; 2]>(), 0..9)) {
        let mapping: Vec<Range> = picks.iter().map(|pick| {
            let [a, b] = pick.map(|pick| pick.index(losses.len() + 1));
            if a == b { UNMAPPED } else { [index(a.min(b)), index(a.max(b))] }
        }).collect();
        for how in [Reduction::Max, Reduction::Mean, Reduction::Sum, Reduction::Min] {
            let expected = mapping.iter().map(|&range| reduce_oracle(&losses, range, how).to_bits());
            let reduced = reduce(&losses, &mapping, how)?;
            prop_assert_eq!(reduced.into_iter().map(f32::to_bits).collect::<Vec<_>>(), expected.collect::<Vec<_>>());
        }
    }

    #[test]
    fn reduce_refuses_other_ranges(losses in losses(), range in [-3..12_i32, -3..12_i32]) {
        let fits = range == UNMAPPED || (0 <= range[0] && range[0] < range[1] && range[1] <= index(losses.len()));
        prop_assert_eq!(reduce(&losses, &[range], Reduction::Max).is_ok(), fits);
    }

    #[test]
    fn reasons_follow_their_definitions(student in student_spans(), teacher in sorted_spans(), seed in any::<u64>()) {
        let mapping = align(&student, &teacher)?;
        let losses: Vec<f64> = (0..teacher.len()).map(|at| if seed >> (at % 64) & 1 == 1 { 1.0 } else { f64::NAN }).collect();
        let cu = [boundaries([student.len()].into_iter()), boundaries([teacher.len()].into_iter())];
        let plain = unmapped_reasons(&student, &teacher, &mapping, None::<&[f32]>, &cu[0], &cu[1])?;
        let scored = unmapped_reasons(&student, &teacher, &mapping, Some(&losses), &cu[0], &cu[1])?;
        let filled = || teacher.iter().filter(|[start, end]| start < end);
        for (token, &[start, end]) in student.iter().enumerate() {
            let overlaps = start < end && filled().any(|other| other[0] < end && start < other[1]);
            let expected = if overlaps {
                Reason::Mapped
            } else if start >= end {
                Reason::Special
            } else if filled().all(|&[_, last]| start >= last) {
                Reason::Truncated
            } else {
                Reason::Hole
            };
            prop_assert_eq!(plain[token], expected);
            let unscored = overlaps && reduce_oracle(&losses, mapping[token], Reduction::Max).is_nan();
            prop_assert_eq!(scored[token], if unscored { Reason::Unscored } else { expected });
        }
    }
}

fn losses() -> impl Strategy<Value = Vec<f64>> {
    let odd = select(vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY]);
    prop::collection::vec(prop_oneof![3 => -9.0..9.0, 1 => odd], 0..9)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "few and small numbers")]
fn reduce_oracle(losses: &[f64], [first, stop]: Range, how: Reduction) -> f32 {
    let rows = usize::try_from(first).unwrap_or(0)..usize::try_from(stop).unwrap_or(0);
    let kept: Vec<f64> = losses[rows].iter().copied().filter(|loss| loss.is_finite()).collect();
    if kept.is_empty() {
        return f32::NAN;
    }
    let sum = || kept.iter().skip(1).fold(kept[0], |sum, loss| sum + loss);
    (match how {
        Reduction::Max => kept.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        Reduction::Min => kept.iter().copied().fold(f64::INFINITY, f64::min),
        Reduction::Sum => sum(),
        Reduction::Mean => kept.iter().fold(0.0, |sum, loss| sum + loss) / kept.len() as f64,
    }) as f32
}

/// Many small cases from a fixed generator, beside those that proptest draws.
#[test]
fn align_100_000_random_cases() {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut below = |limit: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        i64::try_from(state % limit).expect("small")
    };
    for case in 0..100_000 {
        let mut side = |ordered: bool| {
            let (mut start, mut end) = (0, 0);
            let length = below(if case % 100 == 0 { 200 } else { 12 });
            let span = (0..length).map(|_| match below(6) {
                0 => [0, 0],
                1 => [end, start],
                _ if ordered => {
                    start += below(3);
                    end = (end + below(3)).max(start + 1);
                    [start, end]
                }
                _ => [below(30), below(30)],
            });
            span.collect::<Vec<_>>()
        };
        let (student, teacher) = (side(case % 3 > 0), side(true));
        assert_eq!(align(&student, &teacher), Ok(align_oracle(&student, &teacher)), "{student:?} {teacher:?}");
    }
}

/// Rows enough to be split over threads, one of them out of order in the second case.
#[cfg(feature = "rayon")]
#[test]
fn a_pool_changes_nothing() -> Result<(), Box<dyn std::error::Error>> {
    let row: Vec<Span<i64>> = (0..700).map(|at| [3 * at, 3 * at + 2]).collect();
    let rows = 64;
    let (mut spans, cu) = (row.repeat(rows), boundaries([row.len()].repeat(rows).into_iter()));
    let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build()?;
    for _ in 0..2 {
        let (mut alone, mut shared) = (vec![[7; 2]; spans.len()], vec![[7; 2]; spans.len()]);
        let expected = align_batch(&spans, &cu, &spans, &cu, &mut alone);
        let result = pool.install(|| align_batch(&spans, &cu, &spans, &cu, &mut shared));
        assert_eq!(result, expected);
        assert!(result.is_err() || alone == shared);
        spans[row.len() * 40 + 5] = [0, 1];
        spans[row.len() * 50 + 5] = [0, 1];
    }
    Ok(())
}

// ---- spans from ids

const DUMMIES: [DummyPrefix; 4] =
    [DummyPrefix::None, DummyPrefix::Prepend, DummyPrefix::Metaspace, DummyPrefix::MetaspaceFirst];

/// A document as its generator made it: what each id stands for and where it lies.
#[derive(Clone, Debug)]
struct Document {
    text: String,
    pieces: Vec<(Vec<u8>, bool)>,
    spans: Vec<Span<i32>>,
}

/// Segments of text between added tokens, cut at any bytes, with the dummy prefix that the tokenizer would add.
fn document(dummy: DummyPrefix) -> impl Strategy<Value = Document> {
    let segment = ("[ ab∑😊]{0,6}", prop::collection::vec(any::<bool>(), 32), any::<bool>());
    prop::collection::vec(segment, 0..4).prop_map(move |segments| {
        let mut made = Document { text: String::new(), pieces: Vec::new(), spans: Vec::new() };
        let add = |made: &mut Document, piece: &[u8], own: usize, added: bool| {
            let start = made.spans.last().map_or(0, |span| span[1]);
            made.spans.push([start, start + index(own)]);
            made.pieces.push((piece.to_vec(), added));
        };
        let mut ends_added = true; // neighbouring segments without an added token between are one
        for (text, cuts, ends_with_added) in segments {
            let has_dummy = match dummy {
                DummyPrefix::None => false,
                DummyPrefix::Prepend => ends_added,
                DummyPrefix::Metaspace => ends_added && !text.starts_with(' '),
                DummyPrefix::MetaspaceFirst => made.pieces.is_empty() && !text.starts_with(' '),
            } && !text.is_empty();
            let surface = [if has_dummy { " " } else { "" }, &text].concat();
            let mut from = 0;
            for at in 1..=surface.len() {
                if cuts[at % cuts.len()] || at == surface.len() {
                    let dropped = usize::from(has_dummy && from == 0);
                    add(&mut made, &surface.as_bytes()[from..at], at - from - dropped, false);
                    from = at;
                }
            }
            made.text += &text;
            ends_added = text.is_empty() && ends_added;
            if ends_with_added {
                add(&mut made, b"<|x|>", 5, true);
                made.text += "<|x|>";
                ends_added = true;
            }
        }
        made
    })
}

fn table_of(documents: &[Document], dummy: DummyPrefix) -> PieceTable {
    let pieces: Vec<_> = documents.iter().flat_map(|document| document.pieces.clone()).collect();
    let added: Vec<bool> = pieces.iter().map(|(_, added)| *added).collect();
    PieceTable::new(pieces.into_iter().map(|(piece, _)| Some(piece)), &added, dummy).expect("flags fit")
}

fn documents() -> impl Strategy<Value = (DummyPrefix, Vec<Document>)> {
    select(DUMMIES.to_vec()).prop_flat_map(|dummy| (Just(dummy), prop::collection::vec(document(dummy), 0..4)))
}

proptest! {
    #[test]
    fn ids_prove_the_text_they_were_made_from((dummy, documents) in documents(), spoilt in any::<prop::sample::Index>()) {
        let table = table_of(&documents, dummy);
        let cu = boundaries(documents.iter().map(|document| document.pieces.len()));
        let ids: Vec<i32> = (0..index(table.len())).collect();
        let mut texts: Vec<String> = documents.iter().map(|document| document.text.clone()).collect();
        let expected: Vec<_> = documents.iter().flat_map(|document| document.spans.clone()).collect();
        let (mut spans, mut proved) = (vec![[7; 2]; ids.len()], vec![false; documents.len()]);
        spans_from_ids_batch(&table, &ids, &cu, &texts, &mut spans, &mut proved)?;
        prop_assert_eq!(&spans, &expected);
        prop_assert!(proved.iter().all(|&proved| proved));

        if !documents.is_empty() {
            let spoilt = spoilt.index(documents.len());
            texts[spoilt].push('!');
            spans_from_ids_batch(&table, &ids, &cu, &texts, &mut spans, &mut proved)?;
            prop_assert!(proved.iter().enumerate().all(|(row, &proved)| proved == (row != spoilt)));
            let rows = cu.windows(2).enumerate();
            for (row, pair) in rows {
                let tokens = usize::try_from(pair[0]).expect("positive")..usize::try_from(pair[1]).expect("positive");
                let zeros = vec![[0; 2]; tokens.len()];
                prop_assert_eq!(&spans[tokens.clone()], if row == spoilt { &zeros[..] } else { &expected[tokens] });
            }
        }
    }

    #[test]
    fn what_is_proved_is_true(dummy in select(DUMMIES.to_vec()), ids in prop::collection::vec(-1..6_i32, 0..6), text in "[ ab]{0,6}") {
        let pieces = [Some(" "), Some(" a"), Some("a"), Some("b"), None];
        let table = PieceTable::new(pieces, &[false, false, false, true, false], dummy)?;
        let mut spans = vec![[7; 2]; ids.len()];
        if spans_from_ids(&table, &ids, text.as_bytes(), &mut spans)? {
            prop_assert!(covers(&spans, &text));
            for (&id, &[start, end]) in ids.iter().zip(&spans) {
                let piece = usize::try_from(id).ok().and_then(|id| pieces[id]).unwrap_or("?");
                let own = &text.as_bytes()[usize::try_from(start).expect("inside")..usize::try_from(end).expect("inside")];
                prop_assert!(piece.as_bytes() == own || piece.as_bytes() == [b" ", own].concat());
            }
        } else {
            prop_assert!(spans.iter().all(|&span| span == [0; 2]));
        }
    }

    #[test]
    fn characters_are_found_in_bytes(text in "[a \u{301}∑😊]{0,9}", picks in prop::collection::vec(any::<[prop::sample::Index; 2]>(), 0..9)) {
        let places: Vec<i32> = text.char_indices().map(|(at, _)| index(at)).chain([index(text.len())]).collect();
        let offsets: Vec<Span<i64>> = picks.iter().map(|pick| {
            let mut pair = pick.map(|pick| i64::try_from(pick.index(places.len())).expect("small"));
            pair.sort_unstable();
            pair
        }).collect();
        let expected = offsets.iter().map(|pair| pair.map(|at| places[usize::try_from(at).expect("small")])).collect();
        prop_assert_eq!(chars_to_bytes(&offsets, &text), Ok(expected));
        let past = i64::try_from(places.len()).expect("small");
        prop_assert!(chars_to_bytes(&[[0, past]], &text).is_err());
    }
}

// ---- closing

/// Whether the union of the non-empty spans is the whole text.
fn covers(spans: &[Span<i32>], text: &str) -> bool {
    let mut covered = 0;
    let mut sorted = spans.to_vec();
    sorted.sort_unstable();
    for [start, end] in sorted {
        if start < end && start <= covered {
            covered = covered.max(end);
        }
    }
    covered == index(text.len())
}

/// Ordered spans on character boundaries, zero-width ones among them, of tokens of every kind.
fn holed() -> impl Strategy<Value = (String, Vec<Span<i32>>, Vec<TokenKind>)> {
    let kind = select(vec![TokenKind::Normal, TokenKind::Normal, TokenKind::Blank, TokenKind::Special]);
    let token = (0..3_usize, 0..3_usize, 0..6_u8, kind);
    ("[a \u{301}∑😊]{0,9}", prop::collection::vec(token, 0..9)).prop_map(|(text, tokens)| {
        let places: Vec<i32> = text.char_indices().map(|(at, _)| index(at)).chain([index(text.len())]).collect();
        let last = places.len() - 1;
        let (mut start, mut end) = (0, 0);
        let (mut spans, mut kinds) = (Vec::new(), Vec::new());
        for (start_step, end_step, width, kind) in tokens {
            start = (start + start_step).min(last);
            end = (end + end_step).max(start).min(last);
            spans.push(match (kind, width) {
                (TokenKind::Special, _) => [0, 0],
                (_, 0) => [places[start]; 2],
                _ => [places[start], places[end]],
            });
            kinds.push(kind);
        }
        (text, spans, kinds)
    })
}

proptest! {
    #[test]
    fn closing_covers_the_text_in_order((text, spans, kinds) in holed()) {
        let mut closed = spans.clone();
        close(&mut closed, &text, &kinds)?;
        if kinds.contains(&TokenKind::Normal) {
            prop_assert!(covers(&closed, &text), "{closed:?}");
        }
        let filled: Vec<_> = closed.iter().filter(|[start, end]| start < end).collect();
        let ordered = filled.windows(2).all(|pair| pair[0][0] <= pair[1][0] && pair[0][1] <= pair[1][1]);
        prop_assert!(ordered, "{closed:?}");
        for ((before, after), kind) in spans.iter().zip(&closed).zip(&kinds) {
            match kind {
                TokenKind::Special => prop_assert_eq!(before, after),
                TokenKind::Blank => prop_assert!(0 <= after[0] && after[0] <= after[1]),
                TokenKind::Normal => {
                    prop_assert!(after[0] < after[1] || text.is_empty(), "{closed:?}");
                    prop_assert!(before[0] == before[1] || (after[0] <= before[0] && before[1] <= after[1]));
                }
            }
        }
        let mut batch = [&spans[..], &spans[..]].concat();
        let cu = boundaries([spans.len(); 2].into_iter());
        close_batch(&mut batch, &cu, &[&text, &text], &[&kinds[..], &kinds[..]].concat())?;
        prop_assert_eq!(batch, [&closed[..], &closed[..]].concat());
    }

    #[test]
    fn closing_twice_is_closing_once((text, spans, kinds) in holed()) {
        let mut closed = spans;
        close(&mut closed, &text, &kinds)?;
        // A blank that was given other characters than white space would let go of them again.
        if !kinds.contains(&TokenKind::Blank) {
            let once = closed.clone();
            close(&mut closed, &text, &kinds)?;
            prop_assert_eq!(closed, once);
        }
    }

    #[test]
    fn nothing_panics(
        spans in prop::collection::vec(any::<[i32; 2]>(), 0..5),
        near in prop::collection::vec([-1..8_i32, -1..8_i32], 0..5),
        cu in prop::collection::vec(-1..6_i64, 0..4),
        text in "[a ∑]{0,3}",
    ) {
        let kinds = vec![TokenKind::Blank; near.len()];
        for spans in [&spans, &near] {
            let _ = close(&mut spans.clone(), &text, &kinds);
            let _ = close_batch(&mut spans.clone(), &cu, &[&text], &kinds);
            let _ = chars_to_bytes(spans, &text);
            let _ = align(spans, &near);
            let _ = align_into(spans, &near, &mut [UNMAPPED; 2]);
            let _ = align_batch(spans, &cu, &near, &cu, &mut near.clone());
            let _ = reduce(&[1.0_f32; 4], spans, Reduction::Mean);
            let _ = unmapped_reasons(&near, spans, spans, Some(&[1.0_f32; 4]), &cu, &cu);
        }
    }
}
