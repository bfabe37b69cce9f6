"""Built-in prompts: of many kinds and very different lengths, so that a batch of them is ragged from the start.

They are user messages for the chat template.
"""

PROMPTS = (
    # 0-5: a few words
    "Say hello.",
    "What is the capital of Portugal?",
    "Name three primary colors.",
    "Write a haiku about the sea.",
    "Count from one to twenty, separated by commas.",
    "Translate into French: Where is the train station?",
    # 6-11: a sentence or two
    "Explain to a child of eight why the sky is blue. Use at most four sentences.",
    "Write a Python function `is_palindrome(text)` that ignores case and anything that is not a letter.",
    "List ten things to pack for a week of hiking in the mountains, one per line, each with a short reason.",
    "A shop sells pencils at 3 for 2 dollars. I buy 12 pencils and pay with a 20 dollar note. How much change do I "
    "get? Show each step.",
    "Compare cats and dogs as pets for somebody who lives in a small flat and works long hours. End with a "
    "recommendation.",
    "Write a short, polite email to my landlord, Mrs. Keller. The heating in the kitchen has been cold since Monday, "
    "and I would like somebody to look at it before the weekend.",
    # 12-17: a paragraph to work on
    """\
Correct the spelling and grammar of this text and change nothing else:

Yesterday me and my brother goes to the market to by some vegetables. The tomatos was very cheap, but the seller do not
have no change, so we has to buy two kilo more then we wanted. On the way home it start to rain and we was completly
wet.""",
    """\
Extract the name, the date, the city and the price from the text below. Answer with one JSON object and nothing else.

Text: Our member Lucia Ferrand booked the guided tour of the old harbour in Trieste for the 14th of September. She paid
38 euros at the desk, lunch included, and asked for a seat near the front of the bus.""",
    """\
Rewrite the following paragraph, replacing every "Anna" with "Martin" and changing the pronouns to match. Keep all other
words as they are.

Anna opened the workshop at seven, as she did every morning. She put her bag on the bench, switched on the lamp and
looked at the clock that a customer had left with her. It had not run for thirty years. Anna took out the first screw,
then the second, and laid them in a row in front of her.""",
    """\
Add a docstring and type hints to this function and return the whole function:

```python
def moving_average(values, size):
    if size < 1:
        raise ValueError("size must be at least 1")
    result = []
    total = 0.0
    for index, value in enumerate(values):
        total += value
        if index >= size:
            total -= values[index - size]
        result.append(total / min(index + 1, size))
    return result
```""",
    """\
Turn these notes into a numbered list, one item per line, in the same order and with the same words:

preheat the oven to 200 degrees; peel four potatoes and cut them into thin slices; butter a flat dish; lay the slices in
the dish like roof tiles; mix cream, salt, pepper and a little nutmeg; pour the cream over the potatoes; cover the dish
with grated cheese; bake for forty minutes; let it rest for ten minutes before serving""",
    """\
Answer the question from the text only.

Text: The bridge over the Varna was opened in 1911 and carried horse carts, then lorries. A flood took its middle pier
in 1958, and for six years people crossed by ferry. The new span of steel was finished in 1964. Since 1990 the bridge
has been closed to cars, and today it is used by walkers and cyclists.

Question: How did people cross the river in 1960, and why?""",
    # 18-23: a page to work on
    """\
Summarize the following text in three sentences.

A sourdough starter is a mixture of flour and water in which wild yeast and bacteria live together. The yeast makes the
gas that lifts the bread, and the bacteria make the acids that give it its taste and help to keep it from going mouldy.
To begin one, mix equal weights of flour and water in a jar, cover it loosely, and leave it in a warm place. Each day,
throw half of the mixture away and replace it with fresh flour and water. After two or three days the first bubbles
appear, often with an unpleasant smell, because the bacteria that come first are not the ones that stay. Do not give up
at this point. As the mixture becomes more acid, these early guests die off and the yeast takes over. After a week or
two the starter rises and falls in a steady rhythm and smells pleasantly sour, like yoghurt or green apples. It is ready
for baking when it doubles in size within six hours of being fed. A starter that is used every day can stay at room
temperature. One that is used once a week is better kept in the refrigerator, and needs to be fed a day before use.""",
    """\
Convert the table below to CSV with the columns city, country, population and river. Copy the values exactly.

| City | Country | Population | River |
|---|---|---|---|
| Basel | Switzerland | 178,000 | Rhine |
| Bordeaux | France | 261,000 | Garonne |
| Budapest | Hungary | 1,686,000 | Danube |
| Cologne | Germany | 1,087,000 | Rhine |
| Florence | Italy | 362,000 | Arno |
| Krakow | Poland | 804,000 | Vistula |
| Porto | Portugal | 231,000 | Douro |
| Prague | Czechia | 1,357,000 | Vltava |
| Seville | Spain | 684,000 | Guadalquivir |""",
    """\
Fix the one bug in this program and print the whole corrected program, without any explanation.

```python
import csv
from collections import defaultdict


def read_orders(path):
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            yield row["customer"], int(row["quantity"]), float(row["unit_price"])


def total_per_customer(orders):
    totals = defaultdict(float)
    for customer, quantity, unit_price in orders:
        totals[customer] += quantity + unit_price
    return dict(totals)


def report(totals):
    width = max(len(customer) for customer in totals)
    for customer, total in sorted(totals.items(), key=lambda item: -item[1]):
        print(f"{customer:<{width}}  {total:>10.2f}")


if __name__ == "__main__":
    report(total_per_customer(read_orders("orders.csv")))
```""",
    """\
Here is a conversation between a customer and a support agent. Write down, as a bulleted list, each thing that the agent
promised to do.

Customer: Hello, I ordered a desk lamp two weeks ago and got an email saying that it was delivered, but nothing came.
Agent: I am sorry to hear that. Could you tell me the order number?
Customer: It is 48-2217.
Agent: Thank you. I see that the parcel was handed to a neighbour, but the carrier did not note which one. I will ask
the carrier for the name today and write to you as soon as I have it.
Customer: And if nobody has it?
Agent: Then I will send you a new lamp without charge. If the carrier has not answered by Thursday, I will send it
in any case.
Customer: That sounds fair. The lamp was also meant to be a birthday present, which is now too late.
Agent: I understand. I will add a voucher of ten dollars to your account, and I will have the new lamp sent by express.
Customer: Thank you. Will I get something in writing?
Agent: Yes, I will send you a summary of this conversation by email within the hour.""",
    """\
Copy the following text word for word, but write all measures in metres instead of feet (1 foot is 0.3 metres) and
replace "the company" with "the Aldous Company".

The lighthouse at Cape Morrow stands 90 feet above the rocks and was the third to be built there. The first was a tower
of timber, 40 feet high, which the company put up in the summer after the wreck of the Amelia. It lasted for nine
winters. In the tenth, a storm from the north-east took off the lantern and half of the upper floor, and the two keepers
spent a night in the store room with the sea coming in under the door. They were brought off in the morning by fishermen
from the village, who rowed out against the advice of the harbour master and would take no payment.

The second tower was of brick, 60 feet high, with walls 3 feet thick at the foot. The company had the bricks shipped
from the mainland, since the clay of the island was thought to be too soft. It was a good tower, and would be standing
now if the ground beneath it had been as good. Within twenty years it leaned so far that the keepers complained of
walking uphill to bed. A crack 10 feet long opened on the seaward side, and the engineers who came to look at it advised
the company to build anew on the higher rock, 200 feet to the west.

That is the tower we see today. It is made of granite, each block cut to fit the next like the pieces of a puzzle, so
that no wave can pull one out without lifting all those above it. The lamp could be seen for twenty miles. It burned oil
until 1926, gas until 1957, and has been electric since. The last keeper left in 1988, and the company gave the cottage
to the village, which keeps it as a small museum. On clear days, visitors may climb the 140 steps to the gallery, 80
feet above the rocks, and look down on the round bed of stones where the second tower stood.""",
    """\
Below are six reviews of a small hotel. For each one write a line with its number, the word "good" or "bad", and the
thing that the guest mentions most.

1. We stayed for two nights in May. The room was tiny, but so clean that you could have eaten from the floor, and the
towels were changed every day. Clean, quiet, and not expensive. We would come again at once.
2. I have never slept so badly. The bar below our room was open until three in the morning, and when it closed, the
rubbish lorry came. I asked for another room and was told that there was none, though half of the keys were on the
board.
3. The breakfast alone is worth the journey! Warm bread, four sorts of jam that the owner makes herself, eggs from her
own hens, and coffee for as long as you like. On the last day she even packed us a bag for the train.
4. The pictures on the website must be from another hotel. Ours had a stain on the carpet, a broken lamp, and a view of
a wall. The pool, which was the reason why we booked, has been closed since last year, and nobody had thought of saying
so.
5. Very friendly people. They lent us bicycles, showed us on a map where to swim, and looked after our dog while we went
to the theatre. The bed was a little soft, but that is a matter of taste.
6. The room was fine, but the bill was not. We were charged for a minibar that we did not open, for parking although we
came on foot, and for a third guest who does not exist. It took three emails and two weeks to get the money back, and
not a word of apology.""",
)

# A dozen, from two words to three hundred and fifty, long and short in turn.
DEMO_PROMPTS = tuple(PROMPTS[index] for index in (0, 22, 1, 14, 7, 20, 3, 18, 12, 2, 19, 13))
