"""The words and sentence templates of the invented biographies; `synthetic.Writer` fills them.

Slots: {full} the person's name, {last} the surname, {who} he, she or the surname, {he} {him} {his}; {born} {died} and
{birthplace} {deathplace} the facts, {born_when} with its "on" or "in"; {date:a-b} {when:a-b} {year:a-b} an event when
the person is a to b years old; {place} {given} {man} {stranger} {kin} {a_job} {school} {spouse} drawn afresh each time;
{wrong} {wrong_when} a value that the text itself rejects.
"""

MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
GIVEN = "Ad Bel Cor Dam Eli Fab Gio Hel Iva Jas Kla Lor Mir Nel Oli Pao Rau Sab Tib Uli Val Wen Xan Yor Zen And Cas Dor"
MALE, FEMALE = "an ius mar rik bald o en vard us ek", "a ina elle eth ilia ora is ene ida ya"
FAMILY = (
    "Abr Bor Cren Dahl Egg Fors Gal Hoek Ind Jess Krog Lam Mark Nov Oer Pell Rad Sor Tev Usk Vrij Wald Yst Zak Bjel "
    "Grün Hav Lis Møll Tran"
)
FAMILY_END = "son ic ova ensen elli aard mann stra holm kamp ez ait by ley vik oux enko strup ner ini"
TOWN = (
    "Alm Birk Clar Dorn Ever Fal Gors Hamm Isel Järn Kest Lauf Morn Neth Olst Prest Quen Roth Sten Tulm Und Vorn Wins "
    "Yarm Zwen Bex Crom Drum Ebb Fox"
)
TOWN_END = "ford ton bach leigh mark stedt furt cliff holme wold gate kirk well mond au ey borg bruck sund lo"
TOWN_START = "Great Little North Saint Nether".split()
JOBS = (
    "weaver baker lawyer cellist painter surgeon miller geologist bookseller bishop glazier translator pilot gardener "
    "clockmaker soprano mathematician brewer engraver farmer notary librarian astronomer potter"
).split()
SCHOOLS = "school college university academy monastery".split()

BIRTH = {  # keyed by whether the sentence gives (date, place)
    (True, True): [
        "{full} was born {born_when} in {birthplace}.",
        "{full} was born in {birthplace} {born_when}.",
        "{full}, {a_job}, was born {born_when} at {birthplace}.",
        "Born in {birthplace} {born_when}, {full} grew up as the child of {a_job}.",
        "{full} was {a_job}, born {born_when} in {birthplace}.",
        "{full} was the child of {a_job} of {birthplace} and was born there {born_when}.",
        "{Born_when} {full} was born in {birthplace}.",
    ],
    (True, False): [
        "{full} was born {born_when}.",
        "{full}, {a_job}, was born {born_when}.",
        "Born {born_when}, {full} became {a_job}.",
        "{full} was born {born_when} into the family of {a_job}.",
    ],
    (False, True): [
        "{full} was born in {birthplace}.",
        "{full}, {a_job}, was born at {birthplace}.",
        "Born in {birthplace}, {full} became {a_job}.",
        "{full} was {a_job} and a native of {birthplace}.",
    ],
    (False, False): [
        "{full} was {a_job}.",
        "{full} worked as {a_job} and wrote about it.",
        "{full} is remembered as {a_job}.",
        "The early years of {full}, {a_job}, are obscure.",
    ],
}
DEATH = {
    (True, True): [
        "{who} died {died_when} in {deathplace}.",
        "{who} died in {deathplace} {died_when}.",
        "{Died_when} {he} died in {deathplace}.",
        "{who} died of a fever at {deathplace} {died_when}.",
        "{His} life ended in {deathplace} {died_when}.",
        "{who} died {died_when} in {deathplace} and was buried in {place}.",
    ],
    (True, False): [
        "{who} died {died_when}.",
        "{who} died {died_when} after a long illness.",
        "{His} life ended {died_when}.",
        "{who} died {died_when} and was buried in {place}.",
    ],
    (False, True): [
        "{who} died in {deathplace}.",
        "{who} died at {deathplace} after a long illness.",
        "{His} life ended in {deathplace}.",
        "{who} died in {deathplace} and was buried in {place}.",
    ],
    (False, False): ["", "", "{His} last years are obscure.", "Nothing more is known of {him}."],
}
ASIDES = [
    "{who} studied at the {school} of {place} from {year:17-20} to {year:21-25}.",
    "{who} learnt the trade of {a_job} in {place}.",
    "{who} married {stranger} {when:20-30} in {place}.",
    "In {year:20-30} {he} moved to {place} to work as {a_job}.",
    "{who} was baptised {when:0-0} in {place}.",
    "{who} opened a shop in {place} {when:22-30}.",
    "{His} parents soon moved to {place}.",
    "From {year:20-24} to {year:25-29} {he} lived in {place} with {stranger}.",
    "A child, {given}, was born in {place} {when:22-30}.",
    "{who} spent some years in {place} and in {place}.",
    "The town of {place} gave {him} a prize {when:26-30}.",
    "{His} friend {stranger} died in {place} {when:20-30}.",
    "{who} was made a member of the {school} of {place} {when:24-30}.",
    "{who} left the {school} of {place} in {year:18-24}.",
    "A letter of {date:20-30} shows {him} in {place}.",
    "With {stranger} {he} founded a {school} in {place}.",
    "{who} returned to {place} {when:26-30}.",
]
KIN = [
    "{His} {kin}, born {when:-45--8} in {place}, died {when:1-30} in {place}.",
    "{His} {kin} ({date:-45--8}, {place} - {date:1-30}, {place}) was {a_job}.",
    "{His} {kin} was born in {place} {when:-45--8} and died there {when:1-30}.",
    "{who} should not be confused with {given} {last}, {a_job} born {when:-30-30} in {place}.",
    "A namesake, {given} {last}, was born {when:-30-30} at {place} and died {when:31-80} at {place}.",
    "{His} {kin}, {a_job}, died in {place} {when:1-30}.",
]
CORRECTED = {  # {wrong} is a date or place that the text itself rejects
    "birth_date": [
        "{His} date of birth is {born}, not {wrong}.",
        "Older books say {he} was born {wrong_when}; the parish register has {born}.",
        "{who} gave {wrong} as {his} date of birth, but the register shows {born}.",
        "The birth entry reads {born}; {wrong} is a misprint.",
    ],
    "birth_place": [
        "{His} birthplace is {birthplace}, not {wrong}.",
        "Older books say {he} was born in {wrong}; the parish register has {birthplace}.",
        "{who} named {wrong} as {his} birthplace, but the register shows {birthplace}.",
        "The birth entry is from {birthplace}; {wrong} is a mistake.",
    ],
    "death_date": [
        "{His} date of death is {died}, not {wrong}.",
        "Newspapers say {he} died {wrong_when}; the parish register has {died}.",
        "The gravestone gives {wrong} for {his} death, but the register shows {died}.",
        "The death entry reads {died}; {wrong} is a misprint.",
    ],
    "death_place": [
        "{His} place of death is {deathplace}, not {wrong}.",
        "Newspapers say {he} died in {wrong}; the parish register has {deathplace}.",
        "A plaque in {wrong} claims {his} death, but {he} died in {deathplace}.",
        "The death entry is from {deathplace}; {wrong} is a mistake.",
    ],
}
TRAPS = {  # the person's own fact is not given anywhere in the text
    "birth": [
        "{who} was baptised {when:0-1} in {place}.",
        "{who} was brought up in {place} from {date:1-2} on.",
        "{His} brother {man} was born {when:-3-5} in {place}.",
        "{His} parents married {when:-6--1} in {place}.",
    ],
    "death": [
        "{His} {spouse} died {when:35-70} in {place}.",
        "A monument to {him} was unveiled in {place} {when:60-95}.",
        "{His} will was read {when:40-80} in {place}.",
        "{who} was last seen in {place} {when:32-60}.",
        "{who} lies buried in {place}, where the grave was restored {when:60-95}.",
        "{His} house in {place} burnt down {when:35-70}.",
    ],
}
