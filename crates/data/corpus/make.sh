#!/bin/sh
# Makes kjv.txt.gz from the Debian packages bible-kjv-text (the packed text) and bible-kjv (the
# program that unpacks it). Run it in an empty folder that holds the two .deb files; it needs
# dpkg-deb, awk and zopfli and writes kjv.txt and kjv.txt.gz beside them.
set -eu

for package in bible-kjv-text_4.38_all.deb bible-kjv_4.38_*.deb; do
    dpkg-deb -x "$package" unpacked
done

# The program prints a verse a line, each after its reference: "Ge1:1 In the beginning ...".
# The reference becomes a heading when book or chapter changes, and is dropped otherwise: 31,102
# numbers in a row would be noise to a language model.
unpacked/usr/bin/bible -p unpacked/usr/lib -f 'Gen1:1-Rev22:21' | LC_ALL=C awk '
BEGIN {
    short = "Ge Exo Lev Num Deu Josh Jdgs Ruth 1Sm 2Sm 1Ki 2Ki 1Chr 2Chr Ezra Neh Est Job Psa Prv"
    short = short " Eccl SSol Isa Jer Lam Eze Dan Hos Joel Amos Obad Jonah Mic Nahum Hab Zep Hag"
    short = short " Zec Mal Mat Mark Luke John Acts Rom 1Cor 2Cor Gal Eph Phi Col 1Th 2Th 1Tim"
    short = short " 2Tim Titus Phmn Heb Jas 1Pet 2Pet 1Jn 2Jn 3Jn Jude Rev"
    full = "Genesis,Exodus,Leviticus,Numbers,Deuteronomy,Joshua,Judges,Ruth,1 Samuel,2 Samuel"
    full = full ",1 Kings,2 Kings,1 Chronicles,2 Chronicles,Ezra,Nehemiah,Esther,Job,Psalms"
    full = full ",Proverbs,Ecclesiastes,Song of Solomon,Isaiah,Jeremiah,Lamentations,Ezekiel"
    full = full ",Daniel,Hosea,Joel,Amos,Obadiah,Jonah,Micah,Nahum,Habakkuk,Zephaniah,Haggai"
    full = full ",Zechariah,Malachi,Matthew,Mark,Luke,John,Acts,Romans,1 Corinthians"
    full = full ",2 Corinthians,Galatians,Ephesians,Philippians,Colossians,1 Thessalonians"
    full = full ",2 Thessalonians,1 Timothy,2 Timothy,Titus,Philemon,Hebrews,James,1 Peter"
    full = full ",2 Peter,1 John,2 John,3 John,Jude,Revelation"
    books = split(short, abbreviation, " ")
    if (books != 66 || split(full, title, ",") != 66) exit 1
    for (i = 1; i <= books; i++) name[abbreviation[i]] = title[i]
}
{
    reference = $1
    sub(/:[0-9]+$/, "", reference)
    match(reference, /[0-9]+$/)
    book = substr(reference, 1, RSTART - 1)
    if (!(book in name)) { print "unknown book " book > "/dev/stderr"; exit 1 }
    if (reference != last) {
        print (NR > 1 ? "\n" : "") name[book] " " substr(reference, RSTART)
        last = reference
    }
    verse = substr($0, length($1) + 2)
    gsub(/ +/, " ", verse)
    sub(/ $/, "", verse)
    print verse
}' > kjv.txt

zopfli --i200 kjv.txt
